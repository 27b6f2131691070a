"""S03 with tools: what was streamed is what comes whole, for every way to write calls."""

import asyncio
from typing import Any

import pytest
from gateway_support import GCONFIG, USER, Stage
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError
from reasoning_support import PLAIN, STRIPS, thinking
from test_conversation import check_rows, rows_of
from test_text import END, byte_chat

from areal_agent.data.chat import ChatFormat
from areal_agent.data.parsers.names import TOOL_PARSERS
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.reply import ReplyText, read_reply
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import ModelResponse

PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]

CALLS = {
    "bracket": "[é+1]",
    "hermes": '<tool_call>{"name": "f", "arguments": {"x": 1, "y": "日😀"}}</tool_call>',
    "llama3_json": '<|python_tag|>{"name": "f", "parameters": {"x": 1, "y": "日😀"}}',
    "none": "",
    "pythonic": "[f(x=1, y='日😀')]",
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n"
        "<parameter=y>\n日😀\n</parameter>\n</function>\n</tool_call>"
    ),
}


def named(parser: str) -> ChatFormat:
    """A token a byte, so that markers and characters are spread over many."""
    return ChatFormat(byte_chat().tokenizer, parser, "think")


def ids(text: str) -> list[int]:
    return byte_chat().tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("parser", TOOL_PARSERS)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_tokens_in_any_parts_give_the_whole(parser: str, data: st.DataObject) -> None:
    shards = [
        "<think>",
        "</think>",
        CALLS[parser],
        CALLS[parser][:9],
        "é",
        "日😀",
        " ",
        "\n",
        "[",
        "{",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(shards), max_size=7)))
    stop = data.draw(st.sampled_from(["", "é", "日", "\n"]))
    may_call, ended = data.draw(st.booleans()), data.draw(st.booleans())
    output = ids(text + END)
    output = output if ended else output[: data.draw(st.integers(0, len(output)))]
    chat, gconfig = named(parser), GCONFIG.new(stop=(stop,) if stop else ())
    response = ModelResponse(
        [1], output, [0.0] * len(output), [0] * len(output), "stop" if ended else "length"
    )
    tools = TOOLS if may_call else None
    message = read_reply(chat, gconfig, response, tools=tools, prompt_ids=[]).message

    growing = ReplyText(chat, gconfig)
    splitter = chat.replies.splitter(opened=False, may_call=may_call)
    thought, content, at = "", "", 0
    while at < len(output):
        n = data.draw(st.integers(1, 40))
        piece = splitter.push(growing.push(output[at : at + n]))
        thought, content, at = thought + piece.reasoning, content + piece.content, at + n
    whole = (message.get("reasoning_content", ""), message["content"])
    assert whole[0].startswith(thought)
    assert whole[1].startswith(content)
    rest = splitter.rest(*whole)
    assert (thought + rest.reasoning, content + rest.content) == whole


async def streamed(client: AsyncOpenAI, **asked: Any) -> tuple[dict[str, Any], list[str], str]:
    """The message that the deltas make, its pieces of content, and why it ended."""
    stream = await client.chat.completions.create(**asked, stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    deltas = [choice.delta.model_dump() for choice in choices]
    pieces = [delta["content"] for delta in deltas if delta["content"]]
    calls = [call for delta in deltas for call in delta["tool_calls"] or []]
    assert [call["index"] for call in calls] == list(range(len(calls)))
    assert len({call["id"] for call in calls}) == len(calls)
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    functions = [call["function"] for call in calls]
    message = {"thought": thought, "content": "".join(pieces), "calls": functions}
    return message, pieces, choices[-1].finish_reason or ""


async def plain(client: AsyncOpenAI, **asked: Any) -> tuple[dict[str, Any], str]:
    choice = (await client.chat.completions.create(**asked)).choices[0]
    message = choice.message.model_dump()
    calls = [call["function"] for call in message["tool_calls"] or []]
    thought, content = message.get("reasoning_content") or "", message["content"] or ""
    return {"thought": thought, "content": content, "calls": calls}, choice.finish_reason


@pytest.mark.parametrize("parser", sorted(CALLS.keys() - {"none"}))
async def test_a_stream_tells_what_the_whole_answer_tells(parser: str) -> None:
    call = CALLS[parser]
    said = "" if parser == "pythonic" else "Ich schaue: 日😀. "
    broken = said + call[:-2]
    for text, n_calls in [(said + call, 1), (broken, 0), (said + "no", 0)]:
        full = f"<think>é</think>\n{text}"
        chat = named(parser)
        engine = FakeEngine(lambda _, full=full: Reply(ids(full + END)))
        async with asyncio.timeout(60), Gateway(chat, model="policy") as gateway:
            playing = Stage(chat, gateway, engine)
            async with playing.session(max_new_tokens=600, max_tokens=4096) as session:
                client = gateway.client(session)
                asked: Any = {"model": "m", "messages": [USER], "tools": TOOLS}
                whole, reason = await plain(client, **asked)
                grown, pieces, why = await streamed(client, **asked)
                assert grown == whole
                assert why == reason == ("tool_calls" if n_calls else "stop")
                assert (len(whole["calls"]), whole["thought"]) == (n_calls, "é")
                if said:  # before the call token by token; a space only with what follows
                    assert pieces[:5] == ["I", "c", "h", " s", "c"]
                one, other = session.delivered_turns()
                for name in ("output_tokens", "output_logprobs", "output_versions", "stop_reason"):
                    assert getattr(one.response, name) == getattr(other.response, name)
                check_rows(playing, rows_of(session), [one, other])


async def test_broken_calls_are_echoed_and_gone_on_from() -> None:
    """S04: what could not be run is text, counts, and the next turn goes on from its tokens."""
    for broken in (
        '<tool_call>{"name": "f"',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    ):
        async with thinking(broken, template=PLAIN) as (playing, session):
            client = playing.gateway.client(session)
            whole, reason = await plain(client, model="m", messages=[USER], tools=TOOLS)
            assert (whole["content"], whole["calls"], reason) == (broken, [], "stop")
            history = [USER, {"role": "assistant", "content": broken}, USER]
            await plain(client, model="m", messages=history, tools=TOOLS)
            assert session.counts["malformed_calls"] == session.counts["prefix_hits"] == 1
            check_rows(playing, rows_of(session), session.delivered_turns())


async def test_several_calls_have_results_in_any_order() -> None:
    """S05: ids are unique, and each result is in the next prompt once."""
    says = "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {{"x": {x}}}}}</tool_call>'
        for name, x in [("f", 1), ("f", 2), ("g", 3)]
    )
    async with thinking(says, template=STRIPS) as (playing, session):
        client = playing.gateway.client(session)
        made = await client.chat.completions.create(model="m", messages=[USER], tools=TOOLS)
        message = made.choices[0].message
        calls = message.tool_calls or []
        assert [call.function.arguments for call in calls] == [f'{{"x": {n}}}' for n in (1, 2, 3)]
        assert len({call.id for call in calls}) == 3
        results: list[Any] = [
            {"role": "tool", "tool_call_id": call.id, "content": f"result {k}"}
            for k, call in reversed(list(enumerate(calls)))
        ]
        history: Any = [USER, message.model_dump(exclude_none=True), *results]
        await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
        sent = playing.chat.decode(list(playing.engine.requests[1].input_ids))
        assert [sent.count(f"result {k}") for k in range(3)] == [1, 1, 1]
        assert session.counts["prefix_hits"] == 1


async def test_padding_in_tools_reaches_no_prompt() -> None:
    """S34: Arrow gives every tool the fields of all others, as nulls."""
    properties = {"x": {"type": "integer", "enum": None}, "y": None}
    padded: Any = [
        {
            "type": "function",
            "function": {"name": "f", "strict": None, "parameters": {"properties": properties}},
        }
    ]
    async with thinking(CALLS["hermes"].replace("日😀", "a"), template=PLAIN) as (playing, session):
        client = playing.gateway.client(session)
        message, _ = await plain(client, model="m", messages=[USER], tools=padded)
        assert message["calls"] == [{"name": "f", "arguments": '{"x": 1, "y": "a"}'}]
        assert "null" not in playing.chat.decode(list(playing.engine.requests[0].input_ids))


async def test_tools_without_a_parser_are_refused_by_the_setting() -> None:
    chat = byte_chat()
    assert chat.replies.tool_parser == "hermes"  # detected
    tokenizer = byte_chat.__wrapped__().tokenizer
    tokenizer.chat_template = str(tokenizer.chat_template).replace("tool_call>", "call>")
    mute = ChatFormat(tokenizer)
    async with asyncio.timeout(60), Gateway(mute, model="policy") as gateway:
        playing = Stage(mute, gateway, FakeEngine(lambda _: Reply(ids("ok" + END))))
        async with playing.session() as session:
            client = gateway.client(session)
            with pytest.raises(BadRequestError, match="name one under tool_parser") as caught:
                await client.chat.completions.create(model="m", messages=[USER], tools=TOOLS)
            assert caught.value.param == "tools"
            asked: Any = {"messages": [USER], "tools": TOOLS, "tool_choice": "none"}
            assert (await plain(client, model="m", **asked))[0]["content"] == "ok"
