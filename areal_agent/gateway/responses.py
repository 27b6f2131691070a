"""The responses dialect: items become messages, an earlier answer may be named instead of sent.

Items that stand for one reply, a message and the calls after it, are one assistant message. An
answer that is named by ``previous_response_id`` stands for its own input and its reply, without its
instructions and tools: these are said with each request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from areal_agent.data.messages import Message
from areal_agent.gateway.answer import EVENTS
from areal_agent.gateway.dialect import Asked, Dialect
from areal_agent.gateway.fields import fields_of, items_of, only, role_of, text_field
from areal_agent.gateway.messages import clean, read_text
from areal_agent.gateway.requests import after_system, flat_tools, wants_tools
from areal_agent.gateway.responses_events import Echo, ResponseWriter
from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body

_THOUGHT = "reasoning_content"
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_MESSAGE = ("type", "role", "content", "id", "status")
_CALL = ("type", "call_id", "name", "arguments", "id", "status", "parsed_arguments")
"""The last is what OpenAI's SDK makes of `arguments` for its user; its 2.x sends it back."""
_OUTPUT = ("type", "call_id", "output", "id", "status")
_REASONING = ("type", "id", "summary", "content", "encrypted_content", "status")


def read_response(body: Body, session: Session) -> Asked[Echo]:
    """Read what only this dialect has.

    Raises:
        ApiError: 400, naming the parameter that cannot be honoured.
    """
    echo: dict[str, Any] = {
        "metadata": body.take("metadata", {}),
        "store": body.boolean("store", True),
        "tools": body.take("tools", []),
        "tool_choice": body.take("tool_choice", "auto"),
        "parallel_tool_calls": True,
        "instructions": body.string("instructions"),
        "previous_response_id": body.string("previous_response_id"),
        "truncation": "disabled",
        "text": {"format": {"type": "text"}},
    }
    _take_neutral(body)
    tools = flat_tools(echo["tools"], kinds=("function",), schema="parameters")
    may_call = wants_tools(echo["tool_choice"])
    asked = [*_before(session, echo["previous_response_id"]), *_input(body.take("input"))]
    return Asked(
        echo,
        after_system(echo["instructions"], asked),
        tools if may_call else None,
        kept=asked if echo["store"] else None,
    )


def _take_neutral(body: Body) -> None:
    """Take what may be said only at values that mean nothing for a policy that does not reason."""
    only(body, "background", False)
    only(body, "include", [], ["reasoning.encrypted_content"])
    only(body, "reasoning", {})
    only(body, "service_tier", "auto", "default")
    only(body, "stream_options", {}, {"include_obfuscation": False})
    only(body, "text", {}, {"format": {"type": "text"}})
    only(body, "top_logprobs", 0)
    only(body, "truncation", "disabled")


def _before(session: Session, name: str | None) -> Sequence[Message]:
    """The dialogue up to the end of an earlier answer."""
    if name is None:
        return ()
    exchange = session.kept(name)
    if exchange is None or exchange.error is not None:
        raise ApiError(
            f"previous_response_id: this episode has no stored response {name!r:.80}",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if not exchange.is_over:
        raise ApiError(
            f"previous_response_id: the response {name!r:.80} has not ended yet: wait for it",
            param="previous_response_id",
        )
    return [*(exchange.call.kept or ()), *clean([exchange.replies[0].message], "input")]


def _input(value: object) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages: list[Message] = []
    for i, item in enumerate(
        items_of(value, "input", "text or a list of at least one item", least=1)
    ):
        _add_item(messages, item, f"input[{i}]")
    return clean(messages, "input")


def _add_item(messages: list[Message], item: object, name: str) -> None:
    given = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else {}
    kind = given.get("type") or ("message" if "role" in given else None)
    if kind == "message":
        fields = fields_of(item, name, _MESSAGE)
        role = _ROLES[role_of(fields, name, _ROLES)]
        content = read_text(fields.get("content", ""), f"{name}.content")
        if role == "assistant" and messages and _only_thinks(messages[-1]):
            messages[-1]["content"] = content
        else:
            messages.append({"role": role, "content": content})
    elif kind == "reasoning":
        fields = fields_of(item, name, _REASONING)
        messages.append({"role": "assistant", "content": "", _THOUGHT: _thought(fields, name)})
    elif kind == "function_call":
        call = _call(fields_of(item, name, _CALL), name)
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        fields = fields_of(item, name, _OUTPUT)
        messages.append(
            {
                "role": "tool",
                "content": read_text(fields.get("output"), f"{name}.output"),
                "tool_call_id": text_field(fields, "call_id", name),
            }
        )
    else:
        raise ApiError(
            f"{name}.type: expected 'message', 'reasoning', 'function_call' or "
            f"'function_call_output', got {kind or item!r:.80}: this policy neither makes nor "
            "reads such items",
            param=f"{name}.type",
            code="unsupported_content",
        )


def _only_thinks(message: Message) -> bool:
    return _THOUGHT in message and not message["content"] and "tool_calls" not in message


def _thought(fields: Mapping[str, Any], name: str) -> str:
    """The text of a reasoning item, as this API's answers write it."""
    parts: Any = fields.get("content") or []
    if not isinstance(parts, list) or not all(
        isinstance(part, Mapping)
        and part.get("type") == "reasoning_text"
        and isinstance(part.get("text"), str)
        for part in cast("list[Any]", parts)
    ):
        raise ApiError(
            f"{name}.content: expected a list of parts of type 'reasoning_text', got {parts!r:.80}",
            param=f"{name}.content",
        )
    return "".join(part["text"] for part in cast("list[Any]", parts))


def _call(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = {key: text_field(fields, key, name) for key in ("name", "arguments")}
    return {"id": text_field(fields, "call_id", name), "type": "function", "function": function}


RESPONSES = Dialect(
    "resp_",
    read_response,
    ResponseWriter,
    wire=EVENTS,
    param="input",
    notes=("prompt_cache_retention",),
    max_tokens=("max_output_tokens",),
)
