"""Chat messages and tool schemas as they come from datasets and clients, made fit for a template.

Arrow tables pad structs with nulls, clients send contents in parts and arguments as JSON text;
templates want neither. Text is never touched.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from areal_agent.errors import DataError

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None


def clean_messages(messages: object) -> list[Message]:
    """Return messages without null padding, with text contents, and with arguments as dicts.

    Args:
        messages: a sequence of message dicts, or JSON text of one.

    Raises:
        DataError: naming the message that is not one.
    """
    return [_clean_message(m, i) for i, m in enumerate(_sequence(messages, "messages"))]


def row_messages(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a dataset row.

    Raises:
        DataError: the row has no column ``messages``, or it holds none.
    """
    if row.get("messages") is None:
        raise DataError(
            f"expected a row with the column 'messages', got {sorted(row)}: make it a list such as "
            '[{"role": "user", "content": "..."}]'
        )
    return clean_messages(row["messages"])


def clean_tools(tools: object) -> Tools:
    """Return tool schemas without null padding; None when there is no tool.

    Args:
        tools: a sequence of tool schemas, JSON text of one, or None.

    Raises:
        DataError: naming the tool that is no dict.
    """
    if tools is None:
        return None
    cleaned: list[dict[str, Any]] = []
    for i, tool in enumerate(_sequence(tools, "tools")):
        value = _load_json(tool, f"tools[{i}]") if isinstance(tool, str) else tool
        if not isinstance(value, Mapping):
            raise DataError(f"expected tools[{i}] to be a dict, got {value!r}")
        cleaned.append(_without_nulls(cast("Mapping[str, Any]", value)))
    return cleaned or None


def _sequence(value: object, name: str) -> Sequence[object]:
    if isinstance(value, str):
        value = _load_json(value, name)
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise DataError(f"expected {name} as a list of dicts or JSON text of one, got {value!r}")
    return cast("Sequence[object]", value)


def _load_json(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"expected {name} as a list or JSON text, got {text!r}") from error


def _clean_message(message: object, i: int) -> Message:
    if not isinstance(message, Mapping):
        raise DataError(f"expected messages[{i}] to be a dict, got {message!r}")
    fields = {k: v for k, v in cast("Mapping[str, Any]", message).items() if v is not None}
    if not isinstance(fields.get("role"), str):
        raise DataError(f"expected messages[{i}] to have a role, got {dict(fields)!r}")
    fields["content"] = _text(fields.get("content", ""))
    calls = fields.pop("tool_calls", None)
    if calls:
        fields["tool_calls"] = [_clean_call(call, f"messages[{i}].tool_calls") for call in calls]
    return fields


def _text(content: Any) -> Any:
    """Join contents that consist of text parts; leave others (images) to the template."""
    if not isinstance(content, list):
        return content
    parts = cast("list[Any]", content)
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text", "")) for part in parts)
    return parts


def _clean_call(call: object, name: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise DataError(f"expected {name} to hold dicts, got {call!r}")
    cleaned = _without_nulls(cast("Mapping[str, Any]", call))
    function = cleaned.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        # Text that is no JSON object stays text: a broken call must still be echoed.
        try:
            arguments: object = json.loads(function["arguments"])
        except ValueError:
            return cleaned
        if isinstance(arguments, dict):
            function["arguments"] = arguments
    return cleaned


def _without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _strip(v) for k, v in value.items() if v is not None}


def _strip(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_nulls(cast("Mapping[str, Any]", value))
    if isinstance(value, list):
        return [_strip(item) for item in cast("list[Any]", value)]
    return value
