"""Chat messages as clients send them, brought into the one form that templates and keys see."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from areal_agent.data.json_schema import check_schema
from areal_agent.data.messages import Message, Tools, clean_messages, clean_tools
from areal_agent.errors import DataError
from areal_agent.gateway.fields import items_of, role_of
from areal_agent.net.api_error import ApiError

_write = json.JSONEncoder(sort_keys=True, default=str).encode

ROLES = ("system", "developer", "user", "assistant", "tool")

_FIELDS: dict[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}
"""What a message may hold. Assistant messages come back from clients with all that SDKs add."""

_ASSISTANT = frozenset({"role", "content", "name", "tool_calls"})
_TEXT_PARTS = ("text", "input_text", "output_text")


def read_messages(value: object, *, param: str = "messages") -> list[Message]:
    """Return messages with plain text contents, known roles and no null fields.

    ``developer`` becomes ``system``; lists of text parts are joined.

    Raises:
        ApiError: 400, naming the field that cannot be taken.
    """
    given = items_of(value, param, "a list of at least one message", least=1)
    return clean([_message(message, f"{param}[{i}]") for i, message in enumerate(given)], param)


def clean(plain: Sequence[Message], param: str) -> list[Message]:
    """Return messages without null fields, and with arguments of calls as objects.

    Raises:
        ApiError: 400, something in them is malformed.
    """
    try:
        return clean_messages(plain)
    except DataError as error:
        raise ApiError(f"{param}: {error}", param=param) from error


def read_tools(value: object) -> Tools:
    """Return tool schemas for the template; None without any.

    Raises:
        ApiError: 400, naming the tool that is not one, or is strict beyond what can be checked.
    """
    if not value:
        return None
    for i, tool in enumerate(cast("list[Any]", value) if isinstance(value, list) else [value]):
        function = cast("Any", tool).get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ApiError(
                f"tools[{i}]: expected {{'type': 'function', 'function': {{'name': ...}}}}, got "
                f"{tool!r:.80}",
                param=f"tools[{i}]",
            )
        _check_strict(cast("Mapping[str, Any]", function), f"tools[{i}].function")
    try:
        return clean_tools(value)
    except DataError as error:
        raise ApiError(f"tools: {error}", param="tools") from error


def _check_strict(function: Mapping[str, Any], name: str) -> None:
    strict = function.get("strict")
    if strict not in (None, True, False):
        raise ApiError(
            f"{name}.strict: expected true or false, got {strict!r:.80}", param=f"{name}.strict"
        )
    try:
        if strict and function.get("parameters") is not None:
            check_schema(function["parameters"])
    except DataError as error:
        raise ApiError(
            f"{name}.parameters: {error}: leave strict out, or write the schema without it",
            param=f"{name}.parameters",
        ) from error


def _message(message: object, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ApiError(f"{name}: expected an object, got {message!r:.80}", param=name)
    fields = {k: v for k, v in cast("Mapping[str, Any]", message).items() if v is not None}
    role = role_of(fields, name, ROLES)
    if role == "assistant":
        thought = fields.get("reasoning_content", fields.get("reasoning", ""))
        fields = {key: value for key, value in fields.items() if key in _ASSISTANT}
        if thought:
            fields["reasoning_content"] = read_text(thought, f"{name}.reasoning_content")
    else:
        for key in fields:
            if key not in _FIELDS[role]:
                raise ApiError(
                    f"{name}.{key}: not known in a message of role {role!r}: leave it out",
                    param=f"{name}.{key}",
                )
    fields["role"] = "system" if role == "developer" else role
    fields["content"] = read_text(fields.get("content", ""), f"{name}.content")
    return fields


def read_text(content: object, name: str) -> str:
    """Return the text of a content, which is text or a list of text parts.

    Raises:
        ApiError: 400, naming the part that is no text.
    """
    if isinstance(content, str):
        return content
    parts = items_of(content, name, "text or a list of text parts")
    return "".join(read_part(part, f"{name}[{i}]") for i, part in enumerate(parts))


def read_part(part: object, name: str) -> str:
    """Return the text of one part of a content.

    Raises:
        ApiError: 400, it is no text.
    """
    fields = cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}
    kind, text = fields.get("type"), fields.get("text")
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise ApiError(
            f"{name}: expected a part of type 'text', got {kind or part!r:.80}: this model reads "
            "text only",
            param=f"{name}.type",
            code="unsupported_content",
        )
    return text


def chain_keys(messages: Sequence[Message], before: bytes = b"") -> list[bytes]:
    """Return a key for each beginning of a dialogue: entry i stands for the first i messages.

    `before` is the key of what comes before them.

    Two beginnings have one key when a template cannot tell them apart: fields without a value and
    the ids of calls do not count, the order of an object's keys does not either.
    """
    keys = [before]
    for message in messages:
        keys.append(_digest(keys[-1], _essence(message)))
    return keys


def call_ids(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of a message's calls, in order."""
    return tuple(str(call.get("id", "")) for call in message.get("tool_calls") or ())


def _essence(message: Message) -> dict[str, Any]:
    out = {key: value for key, value in message.items() if value not in (None, "", [])}
    if "tool_calls" in out:
        functions = [call.get("function", {}) for call in message["tool_calls"]]
        out["tool_calls"] = [[f.get("name"), f.get("arguments")] for f in functions]
    if message["role"] == "assistant":
        out.pop("name", None)
        out.pop("reasoning_content", None)  # few clients send it back; see `Turn.thought_so`
    return out


def _digest(before: bytes, value: object) -> bytes:
    text = _write(value)
    return hashlib.blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
