"""The OpenAI SDK against the gateway, in this process and over a socket."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from gateway_support import USER, Stage, stage
from openai import AsyncOpenAI

from areal_agent.gateway.session import Session

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
FUNCTION = {"name": "f", "parameters": {"type": "object"}, "strict": True}
"""Strict, for openai 2 streams no other."""
TOOLS = [{"type": "function", "function": FUNCTION}]


@asynccontextmanager
async def reached(way: str, playing: Stage, session: Session) -> AsyncGenerator[AsyncOpenAI]:
    """A client of a session: in this process, or over a socket with a key or with a path."""
    gateway = playing.gateway
    if way == "inside":
        yield gateway.client(session)
        return
    key, url = {
        "key": (session.key, f"{gateway.url}/v1"),
        "path": ("none", gateway.base_url(session)),
    }[way]
    async with AsyncOpenAI(api_key=key, base_url=url) as client:
        yield client


@pytest.mark.parametrize("way", ["inside", "key", "path"])
async def test_a_reply_comes_whole_and_in_pieces(way: str) -> None:
    """S03: both ways leave the same record."""
    async with (
        asyncio.timeout(20),
        stage("ab c", "ab c") as playing,
        playing.session() as session,
        reached(way, playing, session) as client,
    ):
        whole = await client.chat.completions.create(model="gpt-4o", messages=[USER])
        stream = await client.chat.completions.create(
            model="gpt-4o",
            messages=[USER],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == "ab c"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.model == "policy"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "ab c"
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    first, second = session.delivered_turns()
    assert first.response == second.response
    assert first.reply == second.reply == {"role": "assistant", "content": "ab c"}
    assert [first.id, second.id] == [whole.id, chunks[0].id]


async def test_a_stream_ends_with_a_finish_chunk_and_done() -> None:
    """S03: on the wire."""
    async with stage("ab c") as playing, playing.session() as session:
        headers = {"authorization": f"Bearer {session.key}"}
        body = {"model": "m", "messages": [USER], "stream": True}
        answer = await playing.gateway.http_client.post(
            "http://any/v1/chat/completions", json=body, headers=headers
        )
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "stop"
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_are_parsed_and_their_results_extend_the_prefix(stream: bool) -> None:
    async with asyncio.timeout(20), stage("say " + CALL, "done") as playing:
        async with playing.session() as session:
            client = playing.gateway.client(session)
            if stream:
                async with client.chat.completions.stream(
                    model="m", messages=[USER], tools=TOOLS
                ) as events:
                    async for _ in events:
                        pass
                    reply = (await events.get_final_completion()).choices[0]
            else:
                made = await client.chat.completions.create(model="m", messages=[USER], tools=TOOLS)
                reply = made.choices[0]
            assert reply.finish_reason == "tool_calls"
            assert reply.message.content == "say"
            [call] = reply.message.tool_calls
            assert (call.function.name, call.function.arguments) == ("f", '{"x": 1}')
            history = [
                USER,
                reply.message.model_dump(exclude_unset=True),
                {"role": "tool", "content": "7", "tool_call_id": call.id},
            ]
            await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
            first, second = session.delivered_turns()
        prefix = [*first.response.input_tokens, *first.response.output_tokens]
        assert list(second.response.input_tokens[: len(prefix)]) == prefix
        new = playing.chat.decode(second.response.input_tokens[len(prefix) :])
        assert new == "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"
        assert second.parent is first
        assert {k: n for k, n in session.counts.items() if n} == {"turns": 2, "prefix_hits": 1}


async def test_choices_are_turns_of_their_own() -> None:
    """S06."""
    async with stage("a", "b", "c") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.chat.completions.create(model="m", messages=[USER], n=3)
        assert [c.message.content for c in made.choices] == ["a", "b", "c"]
        await client.chat.completions.create(
            model="m", messages=[USER, {"role": "assistant", "content": "b"}, USER]
        )
        turns = session.delivered_turns()
    assert [turn.id for turn in turns[:3]] == [f"{made.id}-{i}" for i in range(3)]
    assert turns[3].parent is turns[1]
    assert len({request.gconfig.n_samples for request in playing.engine.requests}) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 0}, "temperature"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stop": [""]}, "stop"),
        ({"extra_body": {"no_such": 1}}, "no_such"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "bogus", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async with stage() as playing, playing.session() as session:
        client = playing.gateway.client(session)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**{"model": "m", "messages": [USER]} | body)
        assert caught.value.param == param
        assert playing.engine.requests == []


async def test_odd_but_legal_messages_equal_their_plain_form() -> None:
    plain = [{"role": "system", "content": "be"}, USER]
    odd = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}], "name": None},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ]
    async with stage() as playing, playing.session() as session:
        client = playing.gateway.client(session)
        for messages in (plain, odd):
            await client.chat.completions.create(model="m", messages=messages)
        first, second = playing.engine.requests
    assert first.input_ids == second.input_ids


async def test_sampling_parameters_are_honoured() -> None:
    async with stage() as playing, playing.session(trained=False) as session:
        client = playing.gateway.client(session)
        await client.chat.completions.create(
            model="m", messages=[USER], temperature=0.5, top_p=0.9, max_tokens=7, stop="END"
        )
        [request] = playing.engine.requests
    g = request.gconfig
    assert (g.temperature, g.top_p, g.max_new_tokens, g.stop) == (0.5, 0.9, 7, ("END",))


async def test_a_stop_string_is_not_shown() -> None:
    async with stage("ab END c") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.chat.completions.create(model="m", messages=[USER], stop=["END"])
        assert made.choices[0].message.content == "ab "


async def test_a_prompt_over_the_window_is_one_typed_400() -> None:
    async with stage() as playing, playing.session(max_tokens=40) as session:
        client = playing.gateway.client(session)
        await client.chat.completions.create(model="m", messages=[USER])
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x" * 60}]
            )
        assert caught.value.code == "context_length_exceeded"
        assert session.is_truncated
        assert len(session.delivered_turns()) == 1


async def test_logprobs_are_those_of_the_tokens() -> None:
    async with stage("ab c") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.chat.completions.create(model="m", messages=[USER], logprobs=True)
        content = made.choices[0].logprobs.content
        [turn] = session.delivered_turns()
    assert [entry.logprob for entry in content] == list(turn.response.output_logprobs)
    assert "".join(entry.token for entry in content) == "ab c<|im_end|>"
