"""What requests of several dialects have in common: digests, notes, tools, the system's text."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import orjson

from areal_agent.data.messages import Message, Tools
from areal_agent.gateway.fields import fields_of, items_of
from areal_agent.gateway.messages import read_tools
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body

_NOTES = ("model", "user", "metadata", "store", "safety_identifier", "prompt_cache_key")
"""Facts about a request that change nothing about its answer."""


def digest(body: Body, dialect: str) -> bytes:
    """Return what is the same for the same request, before anything of it is taken."""
    fields = orjson.dumps(body.fields, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(dialect.encode() + fields).digest()


def take_notes(body: Body, *more: str) -> None:
    """Take what changes nothing; any model's name means the policy."""
    body.string("model")
    for name in (*_NOTES, *more):
        body.take(name)


def wants_tools(choice: object) -> bool:
    """Tell whether the policy may call tools, by a request's ``tool_choice``.

    Raises:
        ApiError: 400, it says that the policy must.
    """
    if choice not in ("auto", "none"):
        raise ApiError(
            f"tool_choice: expected 'auto' or 'none', got {choice!r:.80}: the policy cannot be "
            "forced to call",
            param="tool_choice",
            code="invalid_value",
        )
    return choice == "auto"


def flat_tools(
    value: object, *, kinds: Sequence[str | None], schema: str, notes: Collection[str] = ()
) -> Tools:
    """Return tools that a dialect writes flat as templates know them: under ``function``.

    Args:
        value: the list of tools.
        kinds: what ``type`` may be, the name of it first.
        schema: the dialect's name of ``parameters``.
        notes: further fields that change nothing.

    Raises:
        ApiError: 400, naming the tool that is none, or that only the dialect's own service has.
    """
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(items_of(value, "tools")):
        name = f"tools[{i}]"
        kind = cast("Any", tool).get("type") if isinstance(tool, Mapping) else tool
        if kind not in kinds:
            raise ApiError(
                f"{name}.type: expected {kinds[0]!r}, got {kind!r:.80}: there are no built-in "
                "tools here",
                param=f"{name}.type",
            )
        fields = fields_of(tool, name, ("type", "name", "description", "strict", schema, *notes))
        function = {
            "parameters" if key == schema else key: field
            for key, field in fields.items()
            if key != "type" and key not in notes
        }
        tools.append({"type": "function", "function": function})
    return read_tools(tools)


def after_system(text: str | None, messages: Sequence[Message]) -> Sequence[Message]:
    """Return a dialogue with the system's text, if there is any, before it."""
    return [{"role": "system", "content": text}, *messages] if text else messages
