"""Replies as the tokenizer itself describes them: transformers' ``response_template``."""

import re
from collections.abc import Mapping
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolParser, make_call

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names under which such descriptions keep reasoning."""


def make_schema_parser(tokenizer: PreTrainedTokenizerBase) -> ToolParser:
    """Return a parser that leaves the reading to the tokenizer.

    It does not tell where calls may begin, so text that may hold calls comes in one piece.
    """

    def parse(text: str, tools: Tools) -> ParsedReply:
        try:
            found = cast("Any", tokenizer).parse_response(text, prefix="", tools=tools)
            calls = [_call(one) for one in found.get("tool_calls") or ()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ParsedReply(text, is_malformed=True)  # a call that its own parser refuses
        whole = tuple(call for call in calls if call is not None)
        if len(whole) < len(calls):
            return ParsedReply(text, is_malformed=True)
        content = found.get("content")
        return (
            ParsedReply(content if isinstance(content, str) else "", whole)
            if calls
            else (ParsedReply(text))
        )

    return ToolParser(parse, starts=("",))


def spec_of(tokenizer: PreTrainedTokenizerBase) -> Mapping[str, Any] | None:
    """Return what the tokenizer ships; None without any."""
    found = getattr(tokenizer, "response_template", None)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else None


def thought_markers(spec: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the texts around reasoning; None where they are patterns or not there."""
    fields = cast("Mapping[str, Any]", spec.get("fields", {}))
    for name in THOUGHTS:
        field = fields.get(name, {})
        begin, end = field.get("open"), field.get("close")
        if isinstance(begin, str) and isinstance(end, str):
            return begin, end
    return None


def mentions(spec: object, text: str) -> bool:
    """Tell whether a description names a text, by itself or within a pattern."""
    if isinstance(spec, str):
        return text in spec or re.escape(text) in spec
    if isinstance(spec, Mapping):
        return any(mentions(value, text) for value in cast("Mapping[str, Any]", spec).values())
    if isinstance(spec, list):
        return any(mentions(value, text) for value in cast("list[Any]", spec))
    return False


def _call(found: object) -> Any:
    fields: Any = found if isinstance(found, Mapping) else {}
    function: Any = fields.get("function", fields)
    return make_call(function.get("name"), function.get("arguments"))
