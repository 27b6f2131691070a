"""Objects in a request, read field by field: what is not known is refused by name."""

from collections.abc import Collection, Mapping
from typing import Any, cast

from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body


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


def items_of(value: object, name: str, expected: str = "a list", *, least: int = 0) -> list[object]:
    """Return a list, of at least so many items.

    Raises:
        ApiError: 400, it is none.
    """
    if not isinstance(value, list) or len(cast("list[object]", value)) < least:
        raise ApiError(f"{name}: expected {expected}, got {value!r:.80}", param=name)
    return cast("list[object]", value)


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


def role_of(fields: Mapping[str, Any], name: str, roles: Collection[str]) -> str:
    """Return a message's role.

    Raises:
        ApiError: 400, it is not one of `roles`.
    """
    role = fields.get("role")
    if role not in roles:
        raise ApiError(
            f"{name}.role: expected one of {', '.join(roles)}, got {role!r:.80}",
            param=f"{name}.role",
        )
    return cast("str", role)
