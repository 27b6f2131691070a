"""The messages dialect, Anthropic's: blocks become messages, and errors have its shape.

Blocks of one message are cut as a chat template wants them: each tool result is a message of its
own, texts between are joined. A result with ``is_error`` begins with ``Error:``, for templates have
no other way to tell. ``cache_control`` is about cost and is left out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from areal_agent.data.messages import Message, Tools
from areal_agent.gateway.answer import Wire
from areal_agent.gateway.exchange import Call
from areal_agent.gateway.messages import clean, read_part, read_text, read_tools
from areal_agent.gateway.requests import (
    digest,
    fields_of,
    only,
    take_notes,
    text_field,
    wants_tools,
)
from areal_agent.gateway.sampling import read_sampling
from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body

PREFIX = "msg_"

_ROLES = ("user", "assistant", "system")
_USE = ("type", "id", "name", "input", "cache_control")
_RESULT = ("type", "tool_use_id", "content", "is_error", "cache_control")
_TOOL = ("type", "name", "description", "input_schema", "strict", "cache_control")

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


WIRE = Wire(_told, events_are_named=True, done=b"")
"""Errors and events as Anthropic's clients read them."""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How an answer is written."""

    model: str


def read_message(
    body: Body, session: Session, model: str, is_retry: bool
) -> tuple[Call, MessageOptions]:
    """Read a request.

    Args:
        body: the request.
        session: what it belongs to.
        model: the policy's name.
        is_retry: the client says that it sent this before.

    Raises:
        ApiError: 400, naming the parameter that cannot be honoured.
    """
    key = digest(body, PREFIX)
    take_notes(body, "cache_control", "service_tier")
    only(body, "thinking", {"type": "disabled"})
    only(body, "speed", "standard")
    system = read_text(body.take("system", ""), "system")
    messages = _messages(body.take("messages"))
    tools = _tools(body.take("tools", []))
    call = Call(
        messages=[{"role": "system", "content": system}, *messages] if system else messages,
        tools=tools if _may_call(body.take("tool_choice", {"type": "auto"})) else None,
        gconfig=read_sampling(
            body,
            session.gconfig,
            trained=session.trained,
            max_tokens=("max_tokens",),
            stop="stop_sequences",
        ),
        digest=key,
        stream=body.boolean("stream"),
        is_retry=is_retry,
    )
    body.finish()
    return call, MessageOptions(model)


def _may_call(choice: object) -> bool:
    fields = fields_of(choice, "tool_choice", ("type", "name", "disable_parallel_tool_use"))
    if fields.get("disable_parallel_tool_use"):
        raise ApiError(
            "tool_choice.disable_parallel_tool_use: the policy cannot be kept from calling twice: "
            "leave it out",
            param="tool_choice.disable_parallel_tool_use",
        )
    return wants_tools(fields.get("type"))


def _tools(value: object) -> Tools:
    """Tools as the template knows them, which is how OpenAI writes them."""
    if not isinstance(value, list):
        raise ApiError(f"tools: expected a list, got {value!r:.80}", param="tools")
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(cast("list[object]", value)):
        kind = cast("Any", tool).get("type") if isinstance(tool, Mapping) else None
        if kind not in (None, "custom"):
            raise ApiError(
                f"tools[{i}].type: expected 'custom', got {kind!r:.80}: there are no built-in "
                "tools here",
                param=f"tools[{i}].type",
            )
        fields = fields_of(tool, f"tools[{i}]", _TOOL)
        function = {k: v for k, v in fields.items() if k in ("name", "description", "strict")}
        if "input_schema" in fields:
            function["parameters"] = fields["input_schema"]
        tools.append({"type": "function", "function": function})
    return read_tools(tools)


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ApiError(
            f"messages: expected a list of at least one message, got {value!r:.80}",
            param="messages",
        )
    messages: list[Message] = []
    for i, message in enumerate(cast("list[object]", value)):
        name = f"messages[{i}]"
        fields = fields_of(message, name, ("role", "content"))
        role, content = fields.get("role"), fields.get("content")
        if role not in _ROLES:
            raise ApiError(
                f"{name}.role: expected one of {', '.join(_ROLES)}, got {role!r:.80}",
                param=f"{name}.role",
            )
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
