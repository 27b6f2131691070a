"""`/v1/chat/completions` with the real openai client."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from server_support import Served, served
from tiny_models import EOS, byte_tokenizer, make_model

MESSAGES: list[Any] = [{"role": "user", "content": "2+3?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Compute.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def server(folder: Path) -> AsyncGenerator[Served]:
    async with served(folder) as server:
        yield server


@pytest.fixture
async def client(server: Served) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def say(server: Served, text: str) -> None:
    """Make the model say `text` and end its turn, whatever it is asked."""
    ids = [*byte_tokenizer().encode(text), EOS]
    model = server.model
    forward, start = model._logits, {"length": 0}

    def logits(hidden: Any) -> Any:
        found = forward(hidden)
        found[:] = -50.0
        found[:, ids[min(start["length"], len(ids) - 1)]] = 50.0
        start["length"] += 1
        return found

    model._logits = logits  # type: ignore[method-assign]


async def test_a_reply(client: AsyncOpenAI, server: Served) -> None:
    say(server, "héllo")
    answer = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        logprobs=True,
        extra_body={"return_token_ids": True, "return_weight_versions": True},
    )
    choice = answer.choices[0]
    assert choice.message.content == "héllo"
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    extra = choice.model_extra or {}
    assert extra["prompt_token_ids"] == byte_tokenizer().encode("<user>2+3?<eos><assistant>")
    assert extra["token_ids"] == [*byte_tokenizer().encode("héllo"), EOS]
    assert extra["weight_versions"] == [0] * 7
    assert choice.logprobs is not None
    assert [c.logprob for c in choice.logprobs.content or []] == pytest.approx([0.0] * 7, abs=1e-3)


async def test_a_streamed_reply(client: AsyncOpenAI, server: Served) -> None:
    say(server, "héllo 🙂")
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert deltas[0].role == "assistant"
    assert [d.content for d in deltas if d.content] == list("héllo 🙂")
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


async def test_tool_calls(client: AsyncOpenAI, server: Served) -> None:
    say(server, "[2+3]")
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="auto"
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    call: Any = (choice.message.tool_calls or [])[0]
    assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "2+3"}')


async def test_streamed_tool_calls(client: AsyncOpenAI, server: Served) -> None:
    say(server, "so [2+3]")
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, stream=True
    )
    choices = [c.choices[0] async for c in stream if c.choices]
    calls = [call for c in choices for call in c.delta.tool_calls or []]
    assert [(c.index, c.function.name) for c in calls if c.function] == [(0, "calculator")]
    assert "".join(c.delta.content or "" for c in choices) == "so"
    assert choices[-1].finish_reason == "tool_calls"


async def test_text_before_a_call_and_reasoning_are_streamed(tmp_path: Path) -> None:
    make_model(tmp_path)
    async with (
        served(tmp_path, reasoning_parser="think") as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client,
    ):
        asked: Any = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS}
        say(server, "<think>é</think> so [2+3]")
        message = (await client.chat.completions.create(**asked)).choices[0].message
        assert (message.model_dump()["reasoning_content"], message.content) == ("é", "so")
        say(server, "<think>é</think> so [2+3]")
        stream = await client.chat.completions.create(**asked, stream=True)
        deltas = [c.choices[0].delta.model_dump(exclude_none=True) async for c in stream]
        told = [d for d in deltas if "tool_calls" not in d and d.get("content") != ""]
        assert told == [{"reasoning_content": "é"}, {"content": "s"}, {"content": "o"}, {}]
        assert sum(len(d.get("tool_calls", ())) for d in deltas) == 1


@pytest.mark.parametrize("fields", [{"tools": TOOLS, "tool_choice": "none"}, {}])
async def test_without_tools_a_call_is_text(
    client: AsyncOpenAI, server: Served, fields: dict[str, Any]
) -> None:
    say(server, "[2+3]")
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, **fields)
    assert answer.choices[0].message.content == "[2+3]"
    assert answer.choices[0].finish_reason == "stop"


async def test_a_cut_off_reply_is_no_call(client: AsyncOpenAI, server: Served) -> None:
    say(server, "[2+3]")
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, max_completion_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages: expected a list of at least one message, got []"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "at most 255 tokens"),
        ({"messages": [{"role": "user"}], "max_tokens": 1, "max_completion_tokens": 1}, "both"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": MESSAGES, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "at most 255 tokens"),
    ],
)
async def test_bad_requests(server: Served, body: dict[str, Any], message: str) -> None:
    answer = await server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
