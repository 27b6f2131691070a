"""Reasoning stands apart in every dialect, is trained on, and need not be sent back."""

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from gateway_support import USER
from reasoning_support import FORGETS, OPENS, PLAIN, STRIPS, make_thinker, thinking
from test_conversation import check_rows, rows_of, sampled

THOUGHT = "<think>\nI add.\n</think>\n\n"
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}


async def chat_of(client: Any, messages: Any, **kwargs: Any) -> dict[str, Any]:
    made = await client.chat.completions.create(model="m", messages=messages, **kwargs)
    return made.choices[0].message.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("says", "template", "reasoning", "content"),
    [
        (THOUGHT + "Two.", STRIPS, "I add.", "Two."),
        ("<think></think>Two.", STRIPS, None, "Two."),
        ("I add.\n</think>\n\nTwo. ", OPENS, "I add.", "Two. "),
        ("<think>I add.</think>Two.", OPENS, "I add.", "Two."),
        ("I add", OPENS, "I add", ""),
        ("<think>I add", STRIPS, "I add", ""),
        ("Two.</think>", STRIPS, None, "Two.</think>"),
        ("  Two.", STRIPS, None, "  Two."),
        (THOUGHT + THOUGHT, PLAIN, "I add.", THOUGHT.strip() + "\n\n"),
        (f"<think>{CALL}</think>no", STRIPS, CALL, "no"),
    ],
)
async def test_chat_completions(
    says: str, template: str, reasoning: str | None, content: str
) -> None:
    async with thinking(says, says, template=template) as (playing, session):
        client = playing.gateway.client(session)
        message = await chat_of(client, [USER], tools=[TOOL])
        assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
        stream = await client.chat.completions.create(
            model="m", messages=[USER], tools=[TOOL], stream=True
        )
        deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
        assert "".join(d.get("reasoning_content") or "" for d in deltas) == (reasoning or "")
        assert "".join(d["content"] or "" for d in deltas) == content
        one, other = session.delivered_turns()
        assert one.response.output_tokens == other.response.output_tokens
        assert list(one.response.output_tokens) == playing.ids(says + "<|im_end|>")


async def test_the_pieces_come_as_they_are_sampled() -> None:
    async with thinking(THOUGHT + "Two is it.") as (playing, session):
        stream = await playing.gateway.client(session).chat.completions.create(
            model="m", messages=[USER], stream=True
        )
        deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
        thoughts = [d["reasoning_content"] for d in deltas if d.get("reasoning_content")]
        texts = [d["content"] for d in deltas if d["content"]]
        assert thoughts == ["I", " a", "d", "d", "."]
        assert len(texts) > 5


async def test_responses_have_reasoning_items() -> None:
    says = THOUGHT + "Let me see. " + CALL
    async with thinking(says, says, "ok") as (playing, session):
        client = playing.gateway.client(session)
        tools: Any = [{"type": "function", "name": "f", "parameters": {}}]
        asked: dict[str, Any] = {"model": "m", "input": [USER], "tools": tools}
        made = await client.responses.create(**asked)
        thought, said, call = made.output
        assert [item.type for item in made.output] == ["reasoning", "message", "function_call"]
        assert (thought.content[0].text, thought.summary) == ("I add.", [])
        n_thought = len(playing.ids(THOUGHT.rstrip()))
        assert made.usage.output_tokens_details.reasoning_tokens == n_thought
        assert (said.content[0].text, call.name) == ("Let me see.", "f")
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        assert events[-1].response.output[0].content == thought.content
        whole = [e.text for e in events if e.type.endswith("_text.done")]
        assert whole == ["I add.", "Let me see."]
        added = [e.item.type for e in events if e.type == "response.output_item.added"]
        done = [e.item for e in events if e.type == "response.output_item.done"]
        assert added == ["reasoning", "message", "function_call"]
        assert done == events[-1].response.output
        pieces = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
        assert "".join(pieces) == "I add."
        history = [USER, *(item.model_dump() for item in made.output)]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        await client.responses.create(**{**asked, "input": [*history, result]})
        assert session.counts["prefix_hits"] == 1


async def test_messages_have_thinking_blocks() -> None:
    says = THOUGHT + "Let me see. " + CALL
    async with thinking(says, says, "ok") as (playing, session):
        base, key = playing.gateway.base_url(session), session.key
        tools: Any = [{"name": "f", "input_schema": {}}]
        messages: list[Any] = [USER]
        async with AsyncAnthropic(base_url=base, api_key=key) as sdk:
            asked: Any = {"model": "m", "tools": tools, "max_tokens": 200}
            made = await sdk.messages.create(messages=messages, **asked)
            assert [b.type for b in made.content] == ["thinking", "text", "tool_use"]
            assert made.content[0].thinking == "I add."
            assert made.content[1].text == "Let me see."
            async with sdk.messages.stream(messages=messages, **asked) as stream:
                final = await stream.get_final_message()
            assert final.content[0] == made.content[0]
            assert (final.content[1].text, final.content[2].name) == ("Let me see.", "f")
            use = made.content[2]
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "3"}
            said = {"role": "assistant", "content": [b.model_dump() for b in made.content]}
            await sdk.messages.create(
                messages=[USER, said, {"role": "user", "content": [result]}], **asked
            )
        assert session.counts["prefix_hits"] == 1


@pytest.mark.parametrize("template", [PLAIN, STRIPS, OPENS])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", None])
async def test_reasoning_is_sent_back_or_not(template: str, name: str | None) -> None:
    """In a loop of tools all three templates keep it: the captured tokens are gone on from."""
    says = (THOUGHT if template != OPENS else "I add.\n</think>\n\n") + CALL
    async with thinking(says, says, "ok", template=template) as (playing, session):
        client = playing.gateway.client(session)
        messages: list[Any] = [USER]
        for _ in range(2):
            reply = await chat_of(client, messages, tools=[TOOL])
            thought = reply.pop("reasoning_content")
            back = reply if name is None else {**reply, name: thought}
            call_id = reply["tool_calls"][0]["id"]
            messages += [back, {"role": "tool", "content": "3", "tool_call_id": call_id}]
        await chat_of(client, messages, tools=[TOOL])
        assert session.counts["prefix_hits"] == 2
        rows = rows_of(session)
        check_rows(playing, rows, session.delivered_turns())
        assert len(rows) == 1
        assert sorted(sampled(rows)) == sorted(
            playing.ids(f"{says}<|im_end|>{says}<|im_end|>ok<|im_end|>")
        )


@pytest.mark.parametrize("sends_back", [True, False])
@pytest.mark.parametrize(
    ("template", "counts"), [(PLAIN, (1, 0)), (STRIPS, (0, 1)), (FORGETS, (0, 1))]
)
async def test_a_template_that_drops_reasoning_breaks_the_prefix(
    template: str, counts: tuple[int, int], sends_back: bool
) -> None:
    """Then the prompt is the template's own rendering, and the earlier turn is a row of its own."""
    async with thinking(THOUGHT + "Two.", "ok", template=template) as (playing, session):
        client = playing.gateway.client(session)
        reply = await chat_of(client, [USER])
        if not sends_back:
            reply.pop("reasoning_content")
        await chat_of(client, [USER, reply, USER])
        found = session.counts
        assert (found["prefix_hits"], found["breaks/template"]) == counts
        rows = rows_of(session)
        check_rows(playing, rows, session.delivered_turns())
        assert len(rows) == 1 + counts[1]
        sent = playing.chat.decode(list(playing.engine.requests[1].input_ids))
        assert ("I add." in sent) is (template == PLAIN)
        if counts[1]:
            expected = playing.chat.prompt_ids([USER, reply, USER])
            assert list(playing.engine.requests[1].input_ids) == expected


async def test_edited_reasoning_is_another_history() -> None:
    async with thinking(THOUGHT + "Two.", "ok", template=PLAIN) as (playing, session):
        client = playing.gateway.client(session)
        reply = await chat_of(client, [USER])
        await chat_of(client, [USER, {**reply, "reasoning_content": "I guess."}, USER])
        assert session.counts["breaks/history"] == 1
        assert session.counts["breaks/tools"] == 0


async def test_text_prompts_know_no_reasoning() -> None:
    async with thinking(THOUGHT + "Two.") as (playing, session):
        made = await playing.gateway.client(session).completions.create(model="m", prompt="hi")
        assert made.choices[0].text == THOUGHT + "Two."


def test_reasoning_may_be_switched_off() -> None:
    chat = make_thinker(STRIPS, reasoning_parser="none")
    ids = chat.tokenizer.encode(THOUGHT + "Two.", add_special_tokens=False)
    assert chat.parse_reply(ids) == {"role": "assistant", "content": THOUGHT + "Two."}
    assert make_thinker(STRIPS).parse_reply(ids)["reasoning_content"] == "I add."
