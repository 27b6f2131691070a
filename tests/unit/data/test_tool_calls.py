"""Calls are read all or nothing (S04), in order (S05); functions describe themselves."""

from typing import Any

import pytest

from areal_agent.data.parsers.calls import ParsedReply, ToolCall
from areal_agent.data.parsers.names import get_tool_parser
from areal_agent.data.tools import tool_schema
from areal_agent.errors import DataError


def hermes(text: str) -> ParsedReply:
    return get_tool_parser("hermes").parse(text, None)


def bracket(text: str) -> ParsedReply:
    return get_tool_parser("bracket").parse(text, None)


def wrap(*bodies: str) -> str:
    return "".join(f"<tool_call>{body}</tool_call>" for body in bodies)


GOOD = '{"name": "f", "arguments": {"x": 1}}'


def test_hermes_reads_calls_in_order_and_the_text_beside_them() -> None:
    second = '\n{"name": "f", "arguments": {"x": {"y": [2]}}}\n'
    assert hermes(f"I look.\n{wrap(GOOD, second)}\n") == ParsedReply(
        "I look.", (ToolCall("f", {"x": 1}), ToolCall("f", {"x": {"y": [2]}}))
    )


@pytest.mark.parametrize(
    "text",
    [
        wrap('{"name": "f", "arguments": {'),
        wrap('{"name": "f", "arguments": null}'),
        wrap('{"name": "f", "arguments": [1]}'),
        wrap('{"name": "f", "arguments": "x"}'),
        wrap('{"name": "f"}'),
        wrap('{"arguments": {}}'),
        wrap('{"name": "", "arguments": {}}'),
        wrap('{"name": 3, "arguments": {}}'),
        wrap("[]"),
        wrap("[" * 100_000),
        wrap(GOOD, '{"name": "g", "argum'),
        f"{wrap(GOOD)}<tool_call>{GOOD}",
        f"<tool_call><tool_call>{GOOD}</tool_call>",
        f"{wrap(GOOD)}</tool_call>",
    ],
)
def test_hermes_takes_a_reply_with_a_malformed_call_as_text(text: str) -> None:
    assert hermes(text) == ParsedReply(text, is_malformed=True)


@pytest.mark.parametrize("text", ["no call", "", "A41"])
def test_text_without_a_call_is_not_a_malformed_one(text: str) -> None:
    assert hermes(text) == bracket(text) == ParsedReply(text)


def test_bracket_reads_expressions() -> None:
    assert bracket("[20*23]") == ParsedReply("", (ToolCall("calculator", {"expression": "20*23"}),))
    assert [c.arguments["expression"] for c in bracket("so [1+1] [2*]").calls] == ["1+1", "2*"]


@pytest.mark.parametrize("text", ["[1+1", "1+1]", "[1+[1]", "[1]]", "[1+1][2"])
def test_bracket_takes_a_reply_with_a_malformed_call_as_text(text: str) -> None:
    assert bracket(text) == ParsedReply(text, is_malformed=True)


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"\['bracket', 'hermes', .*\], got 'qwen'"):
        get_tool_parser("qwen")


def search(query: str, limit: int = 3, *, tags: list[str] | None = None) -> list[str]:
    """Find pages.

    Args:
        query: what to look for
        limit: most pages
        tags: labels they must have

    Returns:
        Their titles.
    """
    return []


def test_a_function_is_described_by_hints_and_docstring() -> None:
    properties = {
        "query": {"type": "string", "description": "what to look for"},
        "limit": {"type": "integer", "description": "most pages"},
        "tags": {
            "type": "array",
            "items": {"type": "string"},
            "nullable": True,
            "description": "labels they must have",
        },
    }
    assert tool_schema(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find pages.",
            "parameters": {"type": "object", "properties": properties, "required": ["query"]},
        },
    }


def no_docstring(x: int) -> None: ...


def no_argument_line(x: int) -> None:
    """Do it."""


def no_hint(x) -> None:  # type: ignore[no-untyped-def]
    """Do it.

    Args:
        x: a number
    """


@pytest.mark.parametrize("function", [no_docstring, no_argument_line, no_hint])
def test_a_function_that_cannot_be_described_is_refused(function: Any) -> None:
    with pytest.raises(DataError, match=rf"the tool '{function.__name__}' cannot .*type hint"):
        tool_schema(function)
