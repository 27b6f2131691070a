"""The messages dialect, Anthropic's: blocks become messages, and errors have its shape.

Blocks of one message are cut as a chat template wants them: each tool result is a message of its
own, texts between are joined. A result with ``is_error`` begins with ``Error:``, for templates have
no other way to tell. ``cache_control`` is about cost and is left out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from areal_agent.data.messages import Message
from areal_agent.gateway.answer import Wire
from areal_agent.gateway.anthropic_events import MessageWriter
from areal_agent.gateway.dialect import Asked, Dialect
from areal_agent.gateway.fields import fields_of, items_of, only, role_of, text_field
from areal_agent.gateway.messages import clean, read_part, read_text
from areal_agent.gateway.requests import after_system, flat_tools, wants_tools
from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body

_ROLES = ("user", "assistant", "system")
_USE = ("type", "id", "name", "input", "cache_control")
_THINKING = ("type", "thinking", "signature")
_RESULT = ("type", "tool_use_id", "content", "is_error", "cache_control")

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _told(error: ApiError) -> dict[str, Any]:
    rest = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ERROR_TYPES.get(error.status, rest)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def read_message(body: Body, session: Session) -> Asked[None]:
    """Read what only this dialect has.

    Raises:
        ApiError: 400, naming the parameter that cannot be honoured.
    """
    only(body, "thinking", {"type": "disabled"})
    only(body, "speed", "standard")
    system = read_text(body.take("system", ""), "system")
    messages = after_system(system, _messages(body.take("messages")))
    tools = flat_tools(
        body.take("tools", []),
        kinds=("custom", None),
        schema="input_schema",
        notes=("cache_control",),
    )
    may_call = _may_call(body.take("tool_choice", {"type": "auto"}))
    return Asked(None, messages, tools if may_call else None)


def _may_call(choice: object) -> bool:
    fields = fields_of(choice, "tool_choice", ("type", "name", "disable_parallel_tool_use"))
    if fields.get("disable_parallel_tool_use"):
        raise ApiError(
            "tool_choice.disable_parallel_tool_use: the policy cannot be kept from calling twice: "
            "leave it out",
            param="tool_choice.disable_parallel_tool_use",
        )
    return wants_tools(fields.get("type"))


def _messages(value: object) -> list[Message]:
    messages: list[Message] = []
    items = items_of(value, "messages", "a list of at least one message", least=1)
    for i, message in enumerate(items):
        name = f"messages[{i}]"
        fields = fields_of(message, name, ("role", "content"))
        role, content = role_of(fields, name, _ROLES), fields.get("content")
        if role == "system" or not isinstance(content, list):
            messages.append({"role": role, "content": read_text(content, f"{name}.content")})
        elif role == "assistant":
            messages.append(_assistant(cast("list[object]", content), f"{name}.content"))
        else:
            messages += _user(cast("list[object]", content), f"{name}.content")
    if messages[-1]["role"] == "assistant":
        raise ApiError(
            "messages: expected a last message of the user, got one of the assistant: the start "
            "of a reply cannot be given",
            param="messages",
        )
    return clean(messages, "messages")


def _assistant(blocks: Sequence[object], name: str) -> Message:
    message: Message = {"role": "assistant", "content": ""}
    for i, block in enumerate(blocks):
        if _kind(block) == "thinking":
            thought = fields_of(block, f"{name}[{i}]", _THINKING)
            text = text_field(thought, "thinking", f"{name}[{i}]")
            message["reasoning_content"] = message.get("reasoning_content", "") + text
            continue
        if _kind(block) != "tool_use":
            message["content"] += read_part(block, f"{name}[{i}]")
            continue
        where = f"{name}[{i}]"
        fields = fields_of(block, where, _USE)
        given = fields.get("input")
        if not isinstance(given, Mapping):
            raise ApiError(
                f"{where}.input: expected an object, got {given!r:.80}", param=f"{where}.input"
            )
        # As text, for nulls in it are the model's and no padding.
        function = {"name": text_field(fields, "name", where), "arguments": json.dumps(given)}
        call = {"id": text_field(fields, "id", where), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    return message


def _user(blocks: Sequence[object], name: str) -> list[Message]:
    messages: list[Message] = []
    for i, block in enumerate(blocks):
        where = f"{name}[{i}]"
        if _kind(block) == "tool_result":
            messages.append(_result(fields_of(block, where, _RESULT), where))
            continue
        if not messages or messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": ""})
        messages[-1]["content"] += read_part(block, where)
    return messages or [{"role": "user", "content": ""}]


def _result(fields: Mapping[str, Any], name: str) -> Message:
    text = read_text(fields.get("content", ""), f"{name}.content")
    return {
        "role": "tool",
        "content": f"Error: {text}" if fields.get("is_error") else text,
        "tool_call_id": text_field(fields, "tool_use_id", name),
    }


def _kind(block: object) -> object:
    return cast("Mapping[str, Any]", block).get("type") if isinstance(block, Mapping) else None


MESSAGES = Dialect(
    "msg_",
    read_message,
    MessageWriter,
    wire=Wire(_told, events_are_named=True, done=b""),
    notes=("cache_control", "service_tier"),
    stop="stop_sequences",
)
