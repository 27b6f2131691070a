"""Calls as JSON: Hermes' and Qwen's in tags, Llama 3's as the whole reply."""

import json
import re
from typing import Any, cast

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolCall, make_call

HERMES_MARKERS = ("<tool_call>",)
TAGS = ("<tool_call>", "</tool_call>")
"""Around each call, in the manner of Hermes and of Qwen."""
LLAMA3_MARKERS = ("<|python_tag|>",)
LLAMA3_STARTS = ("{",)

_HERMES_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_DECODER = json.JSONDecoder()
_SEPARATOR = re.compile(r"\s*;\s*")


def parse_hermes(text: str, tools: Tools) -> ParsedReply:
    """Read ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once or several times."""
    bodies = _HERMES_CALL.findall(text)
    rest = _HERMES_CALL.sub("", text)
    calls = [_hermes_call(body) for body in bodies]
    whole = tuple(call for call in calls if call is not None)
    if "tool_call>" in rest or len(whole) < len(calls):
        return ParsedReply(text, is_malformed=True)
    return ParsedReply(rest.rstrip(), whole) if calls else ParsedReply(text)


def parse_llama3(text: str, tools: Tools) -> ParsedReply:
    """Read ``{"name": ..., "parameters": {...}}``, several with ``;`` between.

    The calls are all of a reply, or all that follows ``<|python_tag|>``. An object without a name
    is an answer in JSON, and no call.
    """
    before, tag, body = text.partition(LLAMA3_MARKERS[0])
    if not tag:
        before, body = "", text
        if not text.lstrip().startswith(LLAMA3_STARTS):
            return ParsedReply(text)
    try:
        objects = _objects(body)
    except (ValueError, RecursionError):
        return ParsedReply(text, is_malformed=bool(tag) or '"name"' in body)
    if not tag and not any("name" in one for one in objects):
        return ParsedReply(text)
    calls = [_llama3_call(one) for one in objects]
    whole = tuple(call for call in calls if call is not None)
    if not whole or len(whole) < len(calls):
        return ParsedReply(text, is_malformed=True)
    return ParsedReply(before.rstrip(), whole)


def _hermes_call(body: str) -> ToolCall | None:
    try:
        call: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict):
        return None
    fields = cast("dict[str, Any]", call)
    return make_call(fields.get("name"), fields.get("arguments"))


def _llama3_call(fields: dict[str, Any]) -> ToolCall | None:
    return make_call(fields.get("name"), fields.get("parameters", fields.get("arguments")))


def _objects(text: str) -> list[dict[str, Any]]:
    """Read objects with semicolons between; one may follow the last.

    Raises:
        ValueError: the text is something else.
    """
    found: list[dict[str, Any]] = []
    text = text.strip()
    at = 0
    while at < len(text):
        one, at = _DECODER.raw_decode(text, at)
        if not isinstance(one, dict):
            raise ValueError("expected an object")
        found.append(cast("dict[str, Any]", one))
        separator = _SEPARATOR.match(text, at)
        if separator is None and at < len(text):
            raise ValueError("expected ';'")
        at = len(text) if separator is None else separator.end()
    return found
