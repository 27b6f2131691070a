"""Strict tools: a call reaches the client only when its arguments fit the tool's schema."""

import asyncio
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from gateway_support import USER, scene, stage
from openai import BadRequestError

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
GOOD = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
BAD = '<tool_call>{"name": "f", "arguments": {"x": "one"}}</tool_call>'


def tool(strict: object = True, schema: Any = SCHEMA) -> dict[str, Any]:
    return {"type": "function", "name": "f", "parameters": schema, "strict": strict}


async def ask_chat(client: Any, url: str, key: str, strict: bool) -> tuple[str, int]:
    fields = {k: v for k, v in tool(strict).items() if k != "type"}
    made = await client.chat.completions.create(
        model="m", messages=[USER], tools=[{"type": "function", "function": fields}]
    )
    message = made.choices[0].message
    return message.content or "", len(message.tool_calls or [])


async def ask_stream(client: Any, url: str, key: str, strict: bool) -> tuple[str, int]:
    fields = {k: v for k, v in tool(strict).items() if k != "type"}
    chunks = await client.chat.completions.create(
        model="m",
        messages=[USER],
        tools=[{"type": "function", "function": fields}],
        stream=True,
    )
    deltas = [c.choices[0].delta async for c in chunks]
    return "".join(d.content or "" for d in deltas), sum(len(d.tool_calls or []) for d in deltas)


async def ask_responses(client: Any, url: str, key: str, strict: bool) -> tuple[str, int]:
    made = await client.responses.create(model="m", input=[USER], tools=[tool(strict)])
    return made.output_text, sum(item.type == "function_call" for item in made.output)


async def ask_anthropic(client: Any, url: str, key: str, strict: bool) -> tuple[str, int]:
    tools: Any = [{"name": "f", "input_schema": SCHEMA, "strict": strict}]
    messages: Any = [USER]
    async with AsyncAnthropic(base_url=url, api_key=key) as sdk:
        made = await sdk.messages.create(model="m", messages=messages, tools=tools, max_tokens=200)
    texts = [block.text for block in made.content if block.type == "text"]
    return "".join(texts), sum(block.type == "tool_use" for block in made.content)


@pytest.mark.parametrize("ask", [ask_chat, ask_stream, ask_responses, ask_anthropic])
@pytest.mark.parametrize(
    ("says", "strict", "expected"),
    [
        (GOOD, True, ("", 1)),
        (GOOD + GOOD, True, ("", 2)),
        (BAD, True, (BAD, 0)),
        (GOOD + BAD, True, (GOOD + BAD, 0)),
        (BAD, False, ("", 1)),
    ],
)
async def test_a_call_that_does_not_fit_is_text(
    ask: Any, says: str, strict: bool, expected: tuple[str, int]
) -> None:
    async with (
        asyncio.timeout(20),
        stage(says) as playing,
        playing.session(max_new_tokens=200) as session,
    ):
        gateway = playing.gateway
        found = await ask(gateway.client(session), gateway.base_url(session), session.key, strict)
        assert found == expected
        assert session.counts["malformed_calls"] == (expected[1] == 0)


@pytest.mark.parametrize(
    ("definition", "param"),
    [
        (tool("yes"), "tools[0].function.strict"),
        (tool(schema={"not": {"type": "object"}}), "tools[0].function.parameters"),
    ],
)
async def test_strictness_that_cannot_be_kept_is_refused(
    definition: dict[str, Any], param: str
) -> None:
    async with scene() as (playing, session):
        function = {k: v for k, v in definition.items() if k != "type"}
        client = playing.gateway.client(session)
        with pytest.raises(BadRequestError, match="strict") as caught:
            await client.chat.completions.create(
                model="m", messages=[USER], tools=[{"type": "function", "function": function}]
            )
        assert caught.value.param == param
