"""Calls as tags, Qwen3-Coder's: values are bare text, whose type the tool's schema tells."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolCall, make_call

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>\s*", re.DOTALL)
_SPELLINGS = {"True": "true", "False": "false", "None": "null"}


def parse_qwen3_coder(text: str, tools: Tools) -> ParsedReply:
    """Read ``<tool_call><function=f><parameter=x>...</parameter></function></tool_call>``.

    Of a value one line break at either end belongs to the format.
    """
    bodies = _CALL.findall(text)
    rest = _CALL.sub("", text)
    calls = [_call(body, tools) for body in bodies]
    whole = tuple(call for call in calls if call is not None)
    if "tool_call>" in rest or "<function=" in rest or len(whole) < len(calls):
        return ParsedReply(text, is_malformed=True)
    return ParsedReply(rest.rstrip(), whole) if calls else ParsedReply(text)


def _call(body: str, tools: Tools) -> ToolCall | None:
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return None
    name, inner = function[1].strip(), function[2]
    schemas = _properties(name, tools)
    arguments: dict[str, Any] = {}
    at = 0
    while parameter := _PARAMETER.match(inner, at):
        key = parameter[1].strip()
        if key in arguments:
            return None
        value = parameter[2].removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(value, schemas.get(key))
        at = parameter.end()
    return None if inner[at:].strip() else make_call(name, arguments)


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            return _dict(_dict(function.get("parameters")).get("properties"))
    return {}


def _typed(text: str, schema: object) -> Any:
    """The value that a text stands for where a schema holds; the text itself if none fits."""
    kinds = _kinds(_dict(schema))
    try:
        value: object = json.loads(_SPELLINGS.get(text.strip(), text), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    if "string" in kinds and value is not None:
        return text
    if "integer" in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = {
        "boolean": isinstance(value, bool),
        "null": value is None,
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }
    return value if any(fits.get(kind, False) for kind in kinds) else text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names, in its alternatives and allowed values too."""
    kind = schema.get("type")
    kinds = {k for k in [kind, *_list(kind)] if isinstance(k, str)}
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in _list(schema.get(key)):
            kinds |= _kinds(_dict(inner))
    if not kinds:
        named = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else ())]
        kinds = {_NAMES[type(value)] for value in named if type(value) in _NAMES}
    return kinds | ({"null"} if schema.get("nullable") else set())


_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def _dict(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
