"""The messages API through Anthropic's SDK: blocks, events, refusals in its own error shape."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic
from gateway_support import Stage, stage

from areal_agent.errors import EngineFault
from areal_agent.gateway.conversation import Turn
from areal_agent.gateway.session import Session

LONG = {"max_new_tokens": 300, "max_tokens": 4000}
pytestmark = pytest.mark.usefixtures("each_way")
SAID = '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>'
CALLS = SAID % 1 + SAID % "null"
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
USER = {"role": "user", "content": "hi"}

START = ["message_start"]
END = ["message_delta", "message_stop"]
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]


@asynccontextmanager
async def reached(
    playing: Stage, session: Session, *, way: str = "key", retries: int = 0
) -> AsyncGenerator[AsyncAnthropic]:
    """A client of a session, over a socket as users make one, or without."""
    gateway = playing.gateway
    options: dict[str, Any] = {
        "key": {"api_key": session.key, "base_url": gateway.url},
        "v1": {"api_key": session.key, "base_url": f"{gateway.url}/v1"},
        "token": {"auth_token": session.key, "base_url": gateway.url},
        "path": {"api_key": "none", "base_url": gateway.base_url(session)},
    }[way]
    if playing.inside:
        options |= {"http_client": gateway.httpx2_client}
        if way != "path":  # a host that does not exist: nothing but the gateway can answer
            options["base_url"] = "http://inside/v1" if way == "v1" else "http://inside"
    async with asyncio.timeout(20), AsyncAnthropic(max_retries=retries, **options) as client:
        yield client


async def both(client: AsyncAnthropic, **body: Any) -> tuple[Any, Any, list[Any]]:
    """Ask twice: an answer in one piece, and one made of events, with the events as sent."""
    body = {"model": "claude", "max_tokens": 300, "messages": [USER]} | body
    whole = await client.messages.create(**body)
    events: list[Any] = []
    async with client.messages.stream(**body) as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_message()
    sent = {"message_start", "content_block_start", "content_block_delta", "content_block_stop"}
    return whole, streamed, [e for e in events if e.type in sent | {"message_delta", END[1]}]


def kinds(events: list[Any]) -> list[str]:
    """Types of events, a run of deltas as one."""
    found: list[str] = []
    for event in events:
        if not found or event.type != found[-1] or event.type != "content_block_delta":
            found.append(event.type)
    return found


def shown(message: Any) -> Any:
    """An answer without the names that differ from one to the next."""
    fields = message.model_dump(exclude={"id": True, "content": {"__all__": {"id"}}})
    for block in fields["content"]:
        block.pop("parsed_output", None)
    return fields


def record(turn: Turn) -> Any:
    """What is trained of a turn, and what its client was given."""
    calls = [call["function"] for call in turn.reply.get("tool_calls", ())]
    return turn.response, turn.reply["content"], calls


@pytest.mark.parametrize("way", ["key", "v1", "token", "path"])
async def test_text_comes_whole_and_in_pieces(way: str) -> None:
    async with (
        stage("ab c", "ab c") as playing,
        playing.session() as session,
        reached(playing, session, way=way) as client,
    ):
        whole, streamed, events = await both(client, system="be", metadata={"user_id": "u"})
    assert kinds(events) == [*START, *BLOCK, *END]
    pieces = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == "ab c"
    assert [block.text for block in whole.content] == ["ab c"]
    assert (whole.stop_reason, whole.stop_sequence, whole.model) == ("end_turn", None, "policy")
    assert shown(whole) == shown(streamed)
    first, second = session.delivered_turns()
    assert record(first) == record(second)
    assert [first.id, second.id] == [whole.id, streamed.id]
    assert whole.usage.input_tokens == len(first.response.input_tokens)
    assert whole.usage.output_tokens == len(first.response.output_tokens)
    assert playing.chat.decode(first.response.input_tokens) == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("text", ["", "say "])
async def test_tool_uses_come_whole_and_in_events(text: str) -> None:
    async with (
        stage(text + CALLS, text + CALLS) as playing,
        playing.session(**LONG) as session,
        reached(playing, session) as client,
    ):
        whole, streamed, events = await both(client, tools=TOOLS)
    assert kinds(events) == [*START, *(BLOCK if text else []), *BLOCK, *BLOCK, *END]
    uses = [block for block in whole.content if block.type == "tool_use"]
    assert [(use.name, use.input) for use in uses] == [("f", {"x": 1}), ("f", {"x": None})]
    assert whole.stop_reason == "tool_use"
    assert [b.text for b in whole.content if b.type == "text"] == ([text.strip()] if text else [])
    assert shown(whole) == shown(streamed)
    ids = [b.id for b in (*whole.content, *streamed.content) if b.type == "tool_use"]
    assert len(set(ids)) == 4
    first, second = session.delivered_turns()
    assert record(first) == record(second)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dialogue_with_tools_extends_what_was_captured(stream: bool) -> None:
    history: list[Any] = [USER]
    async with (
        stage("say " + CALLS, SAID % '"é"', "done") as playing,
        playing.session(**LONG) as session,
        reached(playing, session) as client,
    ):
        for result in ("7", [{"type": "text", "text": "8"}], None):
            body: Any = {"model": "c", "max_tokens": 300, "tools": TOOLS, "system": "be"}
            if stream:
                async with client.messages.stream(messages=history, **body) as events:
                    made = await events.get_final_message()
            else:
                made = await client.messages.create(messages=history, **body)
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": result}
                for block in made.content
                if block.type == "tool_use"
            ]
            history += [{"role": "assistant", "content": made.content}]
            history += [{"role": "user", "content": [*results, {"type": "text", "text": "go"}]}]
        counts = session.counts
    assert {k: n for k, n in counts.items() if n} == {"turns": 3, "prefix_hits": 2}
    first, second, third = session.delivered_turns()
    tool, rest = "<|im_start|>tool\n%s<|im_end|>\n", "<|im_start|>user\ngo<|im_end|>\n"
    for earlier, later, between in (
        (first, second, tool % 7 + tool % 7),
        (second, third, tool % 8),
    ):
        prefix = [*earlier.response.input_tokens, *earlier.response.output_tokens]
        assert later.parent is earlier
        assert list(later.response.input_tokens[: len(prefix)]) == prefix
        new = playing.chat.decode(later.response.input_tokens[len(prefix) :])
        assert new == f"\n{between}{rest}<|im_start|>assistant\n"


async def test_blocks_equal_their_plain_form() -> None:
    def text(*texts: str) -> list[Any]:
        cache = {"type": "ephemeral"}
        return [{"type": "text", "text": t, "cache_control": cache} for t in texts]

    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1"}
    failed = {**result, "is_error": True, "content": text("b", "ad")}
    tool = {**TOOLS[0], "cache_control": {"type": "ephemeral"}}
    function = {"name": "f", "arguments": '{"x": 1}'}
    call = {"id": "t1", "type": "function", "function": function}
    plain = [
        {"role": "system", "content": "be"},
        USER,
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "Error: bad"},
        {"role": "user", "content": "go on"},
    ]
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with (
        stage() as playing,
        playing.session() as session,
        reached(playing, session) as client,
    ):
        await client.messages.create(
            model="m",
            max_tokens=9,
            system=text("b", "e"),
            tools=[tool],
            messages=[
                {"role": "user", "content": text("h", "i")},
                {"role": "assistant", "content": [*text("a"), use]},
                {"role": "user", "content": [failed, *text("go ", "on")]},
            ],
        )
        await playing.gateway.client(session).chat.completions.create(
            model="m", messages=plain, tools=[schema]
        )
        first, second = playing.engine.requests
    assert first.input_ids == second.input_ids


async def test_the_end_says_why() -> None:
    async with (
        stage("ab END c", "ab END c", "ab c " * 9, "ab c " * 9, "", "") as playing,
        playing.session() as session,
        reached(playing, session) as client,
    ):
        for body, reason, sequence, text in (
            ({"stop_sequences": ["no", "END"]}, "stop_sequence", "END", ["ab "]),
            ({"max_tokens": 5}, "max_tokens", None, ["ab c ab "]),
            ({}, "end_turn", None, []),
        ):
            whole, streamed, _ = await both(client, **body)
            assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
            assert [block.text for block in whole.content] == text
            assert shown(whole) == shown(streamed)


async def test_sampling_parameters_are_honoured() -> None:
    async with (
        stage() as playing,
        playing.session(trained=False) as session,
        reached(playing, session) as client,
    ):
        await client.messages.create(
            model="m",
            max_tokens=7,
            messages=[USER],
            stop_sequences=["END"],
            extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 4},
        )
        [request] = playing.engine.requests
    g = request.gconfig
    assert (g.temperature, g.top_p, g.top_k) == (0.5, 0.9, 4)
    assert (g.max_new_tokens, g.stop) == (7, ("END",))


IMAGE = {"type": "image", "source": {"type": "url", "url": "u"}}


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "assistant", "content": "pre"}]}, "messages"),
    (said(IMAGE), "messages[0].content[0]"),
    (said({"type": "redacted_thinking"}, role="assistant"), "messages[0].content[0]"),
    (
        said({"type": "thinking", "thinking": 1}, role="assistant"),
        "messages[0].content[0].thinking",
    ),
    (
        said({"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}),
        "messages[0].content[0].content[0]",
    ),
    (said({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id"),
    (
        said({"type": "tool_use", "id": "1", "name": "f", "input": "x"}, role="assistant"),
        "messages[0].content[0].input",
    ),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [{**TOOLS[0], "input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"system": [IMAGE]}, "system[0]"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"extra_body": {"temperature": 0}}, "temperature"),
    ({"extra_body": {"stop": ["x"]}}, "the parameter 'stop'"),
    ({"extra_body": {"n": 2}}, "n"),
    ({"extra_body": {"no_such": 1}}, "the parameter 'no_such'"),
]


async def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    async with (
        stage() as playing,
        playing.session() as session,
        reached(playing, session) as client,
    ):
        for body, named in REFUSED:
            with pytest.raises(anthropic.BadRequestError) as caught:
                await client.messages.create(
                    **{"model": "m", "max_tokens": 9, "messages": [USER]} | body
                )
            answer = caught.value.body
            assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
            assert answer["error"]["message"].startswith(named), body
        assert playing.engine.requests == []


async def test_errors_before_a_call_have_the_same_shape() -> None:
    async with (
        stage() as playing,
        playing.session() as session,
        httpx.AsyncClient(base_url=playing.gateway.url, headers={"x-api-key": "no"}) as http,
        reached(playing, session) as client,
    ):
        stranger = await http.post("/v1/messages", json={})
        unknown = await http.get("/v1/messages/batches")
        await session.seal()
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=[USER])
    assert stranger.status_code == 401
    assert stranger.json()["error"]["type"] == "authentication_error"
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "not_found_error"
    assert caught.value.status_code == 410
    assert caught.value.body["type"] == "error"


async def test_a_failed_call_is_tried_again_and_counts_once() -> None:
    async with (
        stage(EngineFault("down"), "ab") as playing,
        playing.session() as session,
        reached(playing, session, retries=1) as client,
    ):
        made = await client.messages.create(model="m", max_tokens=9, messages=[USER])
        assert made.content[0].text == "ab"
        assert session.failure is None
        assert [turn.id for turn in session.delivered_turns()] == [made.id]


async def test_a_failure_before_the_first_token_is_no_stream() -> None:
    async with (
        stage(EngineFault("down")) as playing,
        playing.session() as session,
        reached(playing, session) as client,
    ):
        with pytest.raises(anthropic.InternalServerError, match="down"):
            await client.messages.create(model="m", max_tokens=9, messages=[USER], stream=True)


async def test_a_failure_midway_ends_the_stream_with_an_error() -> None:
    body = {"messages": [USER], "stream": True}
    lines: list[str] = []
    async with stage("ab c" * 50) as playing, playing.session(**LONG) as session:
        http = playing.gateway.http_client
        head = {"x-api-key": session.key}
        async with http.stream("POST", "http://any/v1/messages", json=body, headers=head) as got:
            async for line in got.aiter_lines():
                lines.append(line)
                if line == "event: content_block_delta":
                    playing.engine.die()
        assert session.delivered_turns() == []
    assert lines[0] == "event: message_start"
    error = {"type": "error", "error": {"type": "api_error", "message": "the engine broke"}}
    assert lines[-3] == "event: error"
    assert json.loads(lines[-2].removeprefix("data: ")) == error


@pytest.mark.parametrize("last", ["content_block_delta", "message_stop"])
async def test_what_a_client_has_not_read_is_not_trained(last: str) -> None:
    body = {"messages": [USER], "stream": True}
    async with stage("ab c" * 50) as playing, playing.session(**LONG) as session:
        head = {"x-api-key": session.key}
        async with playing.gateway.http_client.stream(
            "POST", "http://any/v1/messages", json=body, headers=head
        ) as got:
            async for line in got.aiter_lines():
                if line == f"event: {last}":
                    break
        assert len(session.delivered_turns()) == (last == "message_stop")


@pytest.mark.parametrize(
    ("arguments", "shown_input"),
    [
        ('{"x": 123456789012345678901234567890}', {"x": 123456789012345678901234567890}),
        ('{"x": NaN}', {"x": "NaN"}),
    ],
)
async def test_numbers_that_json_writers_stumble_over_come_through(
    arguments: str, shown_input: Any
) -> None:
    said = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    async with (
        stage(said, said) as playing,
        playing.session(**LONG) as session,
        reached(playing, session) as client,
    ):
        whole, streamed, _ = await both(client, tools=TOOLS)
    assert whole.content[0].input == streamed.content[0].input == shown_input
