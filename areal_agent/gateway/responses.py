"""The responses dialect: items become messages, an earlier answer may be named instead of sent.

Items that stand for one reply, a message and the calls after it, are one assistant message. An
answer that is named by ``previous_response_id`` stands for its own input and its reply, without its
instructions and tools: these are said with each request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from areal_agent.data.messages import Message, Tools
from areal_agent.gateway.exchange import Call
from areal_agent.gateway.messages import clean, read_text, read_tools
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

PREFIX = "resp_"

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_MESSAGE = ("type", "role", "content", "id", "status")
_CALL = ("type", "call_id", "name", "arguments", "id", "status", "parsed_arguments")
"""The last is what OpenAI's SDK makes of `arguments` for its user; its 2.x sends it back."""
_OUTPUT = ("type", "call_id", "output", "id", "status")
_TOOL = ("type", "name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """How an answer is written."""

    echo: Mapping[str, Any]
    """What answers repeat of the request."""


def read_response(
    body: Body, session: Session, model: str, is_retry: bool
) -> tuple[Call, ResponseOptions]:
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
    echo: dict[str, Any] = {
        "model": model,
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
    take_notes(body, "prompt_cache_retention")
    _take_neutral(body)
    tools = _tools(echo["tools"])
    may_call = wants_tools(echo["tool_choice"])
    stream = body.boolean("stream")
    asked = [*_before(session, echo["previous_response_id"]), *_input(body.take("input"))]
    instructions = echo["instructions"]
    gconfig = read_sampling(
        body, session.gconfig, trained=session.trained, max_tokens=("max_output_tokens",)
    )
    call = Call(
        param="input",
        messages=[{"role": "system", "content": instructions}, *asked] if instructions else asked,
        tools=tools if may_call else None,
        gconfig=gconfig,
        digest=key,
        stream=stream,
        is_retry=is_retry,
        kept=asked if echo["store"] else None,
    )
    body.finish()
    echo["temperature"] = gconfig.effective_temperature
    echo["top_p"] = gconfig.top_p
    echo["max_output_tokens"] = gconfig.max_new_tokens
    return call, ResponseOptions(echo)


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


def _tools(value: object) -> Tools:
    """Tools as the template knows them: what Responses writes flat stands under ``function``."""
    if not isinstance(value, list):
        raise ApiError(f"tools: expected a list, got {value!r:.80}", param="tools")
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(cast("list[object]", value)):
        kind = cast("Any", tool).get("type") if isinstance(tool, Mapping) else tool
        if kind != "function":
            raise ApiError(
                f"tools[{i}].type: expected 'function', got {kind!r:.80}: there are no built-in "
                "tools here",
                param=f"tools[{i}].type",
            )
        fields = fields_of(tool, f"tools[{i}]", _TOOL)
        del fields["type"]
        tools.append({"type": "function", "function": fields})
    return read_tools(tools)


def _input(value: object) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError(
            f"input: expected text or a list of at least one item, got {value!r:.80}",
            param="input",
        )
    messages: list[Message] = []
    for i, item in enumerate(cast("list[object]", value)):
        _add_item(messages, item, f"input[{i}]")
    return clean(messages, "input")


def _add_item(messages: list[Message], item: object, name: str) -> None:
    given = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else {}
    kind = given.get("type") or ("message" if "role" in given else None)
    if kind == "message":
        fields = fields_of(item, name, _MESSAGE)
        role = _ROLES.get(cast("str", fields.get("role")))
        if role is None:
            raise ApiError(
                f"{name}.role: expected one of {', '.join(_ROLES)}, got {fields.get('role')!r:.80}",
                param=f"{name}.role",
            )
        content = read_text(fields.get("content", ""), f"{name}.content")
        messages.append({"role": role, "content": content})
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
            f"{name}.type: expected 'message', 'function_call' or 'function_call_output', got "
            f"{kind or item!r:.80}: this policy neither makes nor reads such items",
            param=f"{name}.type",
            code="unsupported_content",
        )


def _call(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = {key: text_field(fields, key, name) for key in ("name", "arguments")}
    return {"id": text_field(fields, "call_id", name), "type": "function", "function": function}
