"""Tools: how a Python function is described to a model, and how calls are read from its text.

A parser takes the text of a reply and gives what was said beside the calls and the calls
themselves. It takes all or nothing: one malformed call makes the whole reply plain text, so a
broken call never runs with guessed arguments.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
    get_json_schema,
)

from areal_agent.errors import DataError

_HERMES_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_BRACKET_CALL = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply's text beside the calls, and the calls in order."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    is_malformed: bool = False
    """The text looks like a call, but is none that can be run: it is all content."""


ToolParser = Callable[[str], ParsedReply]
"""Reads tool calls from the text of a reply; never raises."""


def parse_hermes(text: str) -> ParsedReply:
    """Read ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once or several times."""
    bodies = _HERMES_CALL.findall(text)
    rest = _HERMES_CALL.sub("", text)
    calls = [_hermes_call(body) for body in bodies]
    whole = tuple(call for call in calls if call is not None)
    if "tool_call>" in rest or len(whole) < len(calls):
        return ParsedReply(text, is_malformed=True)
    return ParsedReply(rest.strip(), whole) if calls else ParsedReply(text)


def _hermes_call(body: str) -> ToolCall | None:
    try:
        call: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict):
        return None
    fields = cast("dict[str, Any]", call)
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, cast("dict[str, Any]", arguments))


def parse_bracket(text: str) -> ParsedReply:
    """Read ``[20*23]`` as a call of ``calculator``: the small demo model's way."""
    expressions = _BRACKET_CALL.findall(text)
    rest = _BRACKET_CALL.sub("", text)
    if "[" in rest or "]" in rest:
        return ParsedReply(text, is_malformed=True)
    if not expressions:
        return ParsedReply(text)
    calls = (ToolCall("calculator", {"expression": expression}) for expression in expressions)
    return ParsedReply(rest.strip(), tuple(calls))


TOOL_PARSERS: dict[str, ToolParser] = {"hermes": parse_hermes, "bracket": parse_bracket}
"""Parsers by the name that settings and model folders use."""


def get_tool_parser(name: str) -> ToolParser:
    """Return the parser called `name`.

    Raises:
        DataError: there is none of that name.
    """
    if name not in TOOL_PARSERS:
        raise DataError(
            f"expected a tool parser, one of {sorted(TOOL_PARSERS)}, got {name!r}: correct "
            'tool_parser in the settings or "tool_parser" in the model\'s tokenizer_config.json'
        )
    return TOOL_PARSERS[name]


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function to a model, from its type hints and its docstring.

    Raises:
        DataError: a hint, the docstring or an argument's line in it is missing.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        schema = cast("dict[str, Any]", get_json_schema(function))
    except (DocstringParsingException, TypeHintParsingException, ValueError) as error:
        raise DataError(
            f"the tool {name!r} cannot be described to a model ({error}): give every argument a "
            "type hint and a line under 'Args:' in a Google-style docstring"
        ) from error
    schema["function"].pop("return", None)
    return schema
