"""The responses API through the OpenAI SDK: items, named answers, events, refusals."""

import asyncio
from typing import Any

import openai
import pytest
from gateway_support import Stage, stage
from openai import AsyncOpenAI

from areal_agent.errors import InferenceError
from areal_agent.gateway.conversation import Turn
from areal_agent.gateway.session import Session

LONG = {"max_new_tokens": 300, "max_tokens": 4000}
SAID = '<tool_call>{"name": "f", "arguments": {"x": %d}}</tool_call>'
CALLS = SAID % 1 + SAID % 2
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]
USER = [{"role": "user", "content": "hi"}]

MESSAGE_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL_EVENTS = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


def kinds(events: list[Any]) -> list[str]:
    """Types of events, a run of deltas as one."""
    found: list[str] = []
    for event in events:
        if not found or event.type != found[-1] or not event.type.endswith("delta"):
            found.append(event.type)
    return found


def shown(item: Any) -> Any:
    """An item without the names that differ from answer to answer."""
    return item.model_dump(exclude={"id", "call_id", "parsed_arguments"}, exclude_none=True)


def record(turn: Turn) -> Any:
    """What is trained of a turn, and what its client was given."""
    calls = [call["function"] for call in turn.reply.get("tool_calls", ())]
    return turn.response, turn.reply["content"], calls


def extends(playing: Stage, earlier: Turn, later: Turn) -> str:
    """Check that a turn goes on from the tokens of another; return the text between them."""
    prefix = [*earlier.response.input_tokens, *earlier.response.output_tokens]
    assert later.parent is earlier
    assert list(later.response.input_tokens[: len(prefix)]) == prefix
    return playing.chat.decode(later.response.input_tokens[len(prefix) :])


async def both(client: AsyncOpenAI, **body: Any) -> tuple[Any, Any, list[Any]]:
    """Ask twice: an answer in one piece, and one made of events."""
    whole = await client.responses.create(model="gpt-5", **body)
    async with client.responses.stream(model="gpt-5", **body) as stream:
        events = [event async for event in stream]
    return whole, events[-1].response, events


@pytest.mark.parametrize("way", ["inside", "key", "path"])
async def test_text_comes_whole_and_in_pieces(way: str) -> None:
    async with asyncio.timeout(20), stage("ab c", "ab c") as playing, playing.session() as session:
        gateway = playing.gateway
        client = {
            "inside": lambda: gateway.client(session),
            "key": lambda: AsyncOpenAI(api_key=session.key, base_url=f"{gateway.url}/v1"),
            "path": lambda: AsyncOpenAI(api_key="none", base_url=gateway.base_url(session)),
        }[way]()
        whole, streamed, events = await both(client, input="hi", instructions="be", metadata={})
        if way != "inside":
            await client.close()
    assert kinds(events) == [*MESSAGE_EVENTS, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == whole.output_text == streamed.output_text == "ab c"
    assert (whole.status, whole.model, whole.instructions) == ("completed", "policy", "be")
    assert whole.usage == streamed.usage
    first, second = session.delivered_turns()
    assert record(first) == record(second)
    assert [turn.id for turn in (first, second)] == [whole.id, streamed.id]
    assert whole.usage.input_tokens == len(first.response.input_tokens)
    assert whole.usage.output_tokens == len(first.response.output_tokens)
    assert playing.chat.decode(first.response.input_tokens) == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("text", ["", "say "])
async def test_calls_come_whole_and_in_events(text: str) -> None:
    async with stage(text + CALLS, text + CALLS) as playing, playing.session(**LONG) as session:
        client = playing.gateway.client(session)
        whole, streamed, events = await both(client, input=USER, tools=TOOLS)
        first, second = session.delivered_turns()
    message = MESSAGE_EVENTS[2:] if text else []
    expected = [*MESSAGE_EVENTS[:2], *message, *CALL_EVENTS, *CALL_EVENTS, "response.completed"]
    assert kinds(events) == expected
    assert [shown(item) for item in whole.output] == [shown(item) for item in streamed.output]
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"x": 1}'), ("f", '{"x": 2}')]
    everything = [*whole.output, *streamed.output]
    assert len({item.id for item in everything}) == len(everything)
    assert len({call.call_id for call in everything if call.type == "function_call"}) == 4
    assert whole.output_text == text.strip()
    assert record(first) == record(second)


async def agent_turns(client: AsyncOpenAI, way: str) -> list[str]:
    """Talk three times with tools, sending everything or naming the answer before."""
    ids: list[str] = []
    history: list[Any] = list(USER)
    body: dict[str, Any] = {"input": history}
    for result in ("7", "8", None):
        if way == "streamed":
            async with client.responses.stream(
                model="m", tools=TOOLS, instructions="be", **body
            ) as stream:
                made = await stream.get_final_response()
        else:
            made = await client.responses.create(model="m", tools=TOOLS, instructions="be", **body)
        ids.append(made.id)
        calls = [item for item in made.output if item.type == "function_call"]
        new = [
            {"type": "function_call_output", "call_id": call.call_id, "output": result}
            for call in calls
        ]
        if way == "named":
            body = {"input": new, "previous_response_id": made.id}
        else:
            history += [*made.output, *new]
    return ids


@pytest.mark.parametrize("way", ["whole", "streamed", "named"])
async def test_a_dialogue_with_tools_extends_what_was_captured(way: str) -> None:
    async with (
        stage("say " + CALLS, SAID % 3, "done") as playing,
        playing.session(**LONG) as session,
    ):
        ids = await agent_turns(playing.gateway.client(session), way)
        first, second, third = session.delivered_turns()
        assert {k: n for k, n in session.counts.items() if n} == {"turns": 3, "prefix_hits": 2}
    assert ids == [first.id, second.id, third.id]
    tool = "<|im_start|>tool\n%s<|im_end|>\n"
    opening = "<|im_start|>assistant\n"
    assert extends(playing, first, second) == "\n" + tool % 7 + tool % 7 + opening
    assert extends(playing, second, third) == "\n" + tool % 8 + opening


async def test_instructions_are_not_carried_over_and_chains_are() -> None:
    async with stage("a", "b", "c") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.responses.create(model="m", input="1", instructions="old")
        made = await client.responses.create(
            model="m", input="2", instructions="new", previous_response_id=made.id
        )
        made = await client.responses.create(
            model="m", input="3", instructions="new", previous_response_id=made.id
        )
        assert made.previous_response_id == session.delivered_turns()[1].id
        third = playing.engine.requests[-1].input_ids
    wanted = ["system", "new", "user", "1", "assistant", "a", "user", "2", "assistant", "b"]
    found = playing.chat.decode(third).replace("<|im_start|>", "\n").replace("<|im_end|>", "")
    assert found.split()[: len(wanted)] == wanted
    assert session.delivered_turns()[2].parent is session.delivered_turns()[1]


async def test_an_answer_is_named_only_in_its_session_and_when_it_was_stored() -> None:
    async with stage() as playing, playing.session() as session, playing.session() as other:
        client = playing.gateway.client(session)
        kept = await client.responses.create(model="m", input="1")
        unkept = await client.responses.create(model="m", input="1", store=False)
        for user, made in (
            (playing.gateway.client(other), kept),
            (client, unkept),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await user.responses.create(model="m", input="2", previous_response_id=made.id)
            assert caught.value.param == "previous_response_id"
            assert caught.value.code == "previous_response_not_found"


async def test_one_prompt_through_two_dialects_is_one_dialogue() -> None:
    async with stage("say " + SAID % 1, "done") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.responses.create(model="m", input=USER, tools=TOOLS)
        call = made.output[1]
        function = {"name": "f", "arguments": '{"x":1}'}
        await client.chat.completions.create(
            model="m",
            messages=[
                *USER,
                {
                    "role": "assistant",
                    "content": "say",
                    "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call.call_id, "content": "7"},
            ],
            tools=[
                {"type": "function", "function": {k: v for k, v in TOOLS[0].items() if k != "type"}}
            ],
        )
        first, second = session.delivered_turns()
        assert second.parent is first


@pytest.mark.parametrize("tools", [[], TOOLS])
async def test_a_reply_that_was_cut_is_incomplete(tools: list[Any]) -> None:
    async with stage("ab c " * 9, "ab c " * 9) as playing, playing.session() as session:
        client = playing.gateway.client(session)
        whole, streamed, events = await both(client, input="hi", max_output_tokens=5, tools=tools)
        first, second = session.delivered_turns()
    assert whole.status == streamed.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"
    assert whole.output_text == streamed.output_text
    assert record(first) == record(second)
    assert (first.response.stop_reason, whole.usage.output_tokens) == ("length", 5)


async def test_tools_may_be_put_out_of_reach() -> None:
    async with stage(SAID % 1) as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.responses.create(model="m", input="hi", tools=TOOLS, tool_choice="none")
    assert made.output_text == SAID % 1
    assert made.tool_choice == "none"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": [{"role": "bogus", "content": "x"}]}, "input[0].role"),
    ({"input": [*USER, {"type": "item_reference", "id": "r"}]}, "input[1].type"),
    ({"input": [*USER, {"type": "reasoning", "content": [{"type": "text"}]}]}, "input[1].content"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "1"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output"),
    ({"input": [{**USER[0], "phase": "commentary"}]}, "input[0].phase"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{**TOOLS[0], "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"temperature": 0}, "temperature"),
    ({"reasoning": {"effort": "high"}}, "reasoning"),
    ({"text": {"format": {"type": "json_object"}}}, "text"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"extra_body": {"n": 2}}, "n"),
    ({"previous_response_id": "resp_none"}, "previous_response_id"),
]


async def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    async with stage() as playing, playing.session() as session:
        client = playing.gateway.client(session)
        for body, param in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(**{"model": "m", "input": "hi"} | body)
            assert caught.value.param == param
        assert playing.engine.requests == []


async def test_sampling_parameters_are_honoured_and_told() -> None:
    async with stage("x") as playing, playing.session(trained=False) as session:
        made = await playing.gateway.client(session).responses.create(
            model="m", input="hi", temperature=0.5, top_p=0.9, max_output_tokens=7, user="u"
        )
        [request] = playing.engine.requests
    g = request.gconfig
    assert (g.temperature, g.top_p, g.max_new_tokens) == (0.5, 0.9, 7)
    assert (made.temperature, made.top_p, made.max_output_tokens) == (0.5, 0.9, 7)


async def test_odd_but_legal_items_equal_their_plain_form() -> None:
    plain = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    parts = [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]
    odd = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be"}]},
        {"role": "user", "content": parts, "status": None},
    ]
    async with stage() as playing, playing.session() as session:
        client = playing.gateway.client(session)
        for items in (plain, odd):
            await client.responses.create(model="m", input=items)
        first, second = playing.engine.requests
    assert first.input_ids == second.input_ids


async def test_a_failure_midway_ends_the_stream_with_an_error() -> None:
    async with (
        asyncio.timeout(20),
        stage("ab c" * 50) as playing,
        playing.session(**LONG) as session,
    ):
        client = playing.gateway.client(session)
        stream = await client.responses.create(model="m", input="hi", stream=True)
        seen = [(await anext(stream)).type for _ in range(3)]
        playing.engine.die()
        with pytest.raises(openai.APIError, match="the engine broke"):
            [seen.append(event.type) async for event in stream]
        assert seen[:2] == MESSAGE_EVENTS[:2]
        assert not any(kind.endswith("completed") for kind in seen)
        assert isinstance(session.failure, InferenceError)
        assert session.delivered_turns() == []


@pytest.mark.parametrize("last", ["output_text.delta", "completed"])
async def test_what_a_client_has_not_read_is_not_trained(last: str) -> None:
    async with stage("ab c" * 50) as playing, playing.session(**LONG) as session:
        client = playing.gateway.client(session)
        async with client.responses.stream(model="m", input="hi") as stream:
            async for event in stream:
                if event.type == f"response.{last}":
                    break
        assert len(session.delivered_turns()) == (last == "completed")


async def test_a_retry_gets_the_same_answer_with_the_same_ids() -> None:
    async def ask(session: Session, retry: int) -> Any:
        return await playing.gateway.client(session).responses.create(
            model="m",
            input="hi",
            tools=TOOLS,
            extra_headers={"x-stainless-retry-count": str(retry)},
        )

    async with stage("say " + CALLS) as playing, playing.session(**LONG) as session:
        first, second = await ask(session, 0), await ask(session, 1)
        assert first == second
        assert session.counts["replays"] == 1
        assert len(session.delivered_turns()) == 1


async def test_an_input_over_the_window_is_named() -> None:
    async with stage() as playing, playing.session(max_tokens=40) as session:
        client = playing.gateway.client(session)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", input="x" * 60)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
