"""What the requests of all dialects have in common: digests, notes, objects with known fields."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, cast

import orjson

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


def only(body: Body, name: str, *allowed: object) -> None:
    """Take a field that may have only values which mean nothing.

    Raises:
        ApiError: 400, it has another one.
    """
    value = body.take(name)
    if value is not None and value not in allowed:
        raise ApiError(
            f"{name}: expected {' or '.join(map(repr, allowed))}, got {value!r:.80}: nothing else "
            "is supported, leave it out",
            param=name,
            code="unsupported_parameter",
        )


def fields_of(value: object, name: str, known: Collection[str]) -> dict[str, Any]:
    """Return the fields of an object that have a value.

    Raises:
        ApiError: 400, it is no object, or has a field that is not known.
    """
    if not isinstance(value, Mapping):
        raise ApiError(f"{name}: expected an object, got {value!r:.80}", param=name)
    fields = {k: v for k, v in cast("Mapping[str, Any]", value).items() if v is not None}
    for key in fields:
        if key not in known:
            raise ApiError(
                f"{name}.{key}: not supported here: leave it out",
                param=f"{name}.{key}",
                code="unsupported_parameter",
            )
    return fields


def text_field(fields: Mapping[str, Any], key: str, name: str) -> str:
    """Return a field that must be text.

    Raises:
        ApiError: 400, it is not.
    """
    value = fields.get(key)
    if not isinstance(value, str):
        raise ApiError(f"{name}.{key}: expected text, got {value!r:.80}", param=f"{name}.{key}")
    return value
