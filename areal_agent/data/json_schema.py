"""Whether a call's arguments fit the JSON schema of a tool that is declared ``strict``.

Every keyword that restricts values is either checked or refused beforehand. ``format`` is an
annotation, as JSON Schema has it by default; so are titles, descriptions, defaults and examples.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from areal_agent.errors import DataError

Schema = Mapping[str, Any]

_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "format", "deprecated", "readOnly"),
        *("writeOnly", "discriminator", "$schema", "$id", "$comment", "$defs", "definitions"),
    ]
)
_ONE = ("items", "additionalProperties")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": _is_number,
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
}

_LIMITS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, Any], bool]]] = {
    "minimum": (_is_number, lambda v, limit: v >= limit),
    "maximum": (_is_number, lambda v, limit: v <= limit),
    "exclusiveMinimum": (_is_number, lambda v, limit: v > limit),
    "exclusiveMaximum": (_is_number, lambda v, limit: v < limit),
    "minLength": (_TYPES["string"], lambda v, limit: len(v) >= limit),
    "maxLength": (_TYPES["string"], lambda v, limit: len(v) <= limit),
    "minItems": (_TYPES["array"], lambda v, limit: len(v) >= limit),
    "maxItems": (_TYPES["array"], lambda v, limit: len(v) <= limit),
    "pattern": (_TYPES["string"], lambda v, limit: re.search(limit, v) is not None),
}
"""For each keyword: the values that it speaks of, and its check."""

_CHECKED = frozenset(("type", "enum", "const", "required", "$ref", *_ONE, *_SEVERAL, "properties"))


def check_schema(schema: object, root: Schema | None = None) -> None:
    """Make sure that `fits` can check all that a schema demands.

    Raises:
        DataError: it holds a keyword that is not known here, or is no schema.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise DataError(f"expected a JSON schema, got {schema!r:.80}")
    fields = cast("Schema", schema)
    root = fields if root is None else root
    for key, value in fields.items():
        if key not in _ANNOTATIONS and key not in _CHECKED and key not in _LIMITS:
            raise DataError(f"the keyword {key!r} cannot be checked")
        if not _is_sound(key, value, root):
            raise DataError(f"{key!r} cannot be {value!r:.80}")
    for inner in _inner(fields):
        check_schema(inner, root)


def fits(value: Any, schema: Any, root: Schema | None = None) -> bool:
    """Tell whether a value is one that a schema, which `check_schema` took, allows."""
    if isinstance(schema, bool):
        return schema
    root = cast("Schema", schema) if root is None else root
    return (
        _fits_itself(value, schema)
        and _fits_alternatives(value, schema, root)
        and (not isinstance(value, dict) or _fits_object(cast("Any", value), schema, root))
        and (not isinstance(value, list) or _fits_array(cast("Any", value), schema, root))
    )


def _is_sound(key: str, value: Any, root: Schema) -> bool:
    if key == "$ref":
        return isinstance(value, str) and _target(value, root) is not None
    if key == "type":
        return all(kind in _TYPES for kind in _types(value))
    if key == "pattern":
        try:
            re.compile(value)
        except (TypeError, re.error):
            return False
        return True
    if key in _LIMITS:
        return _is_number(value)
    if key in ("enum", "required", *_SEVERAL):
        return isinstance(value, list)
    return key not in _NAMED or isinstance(value, Mapping)


def _inner(schema: Schema) -> list[Any]:
    found = [schema[key] for key in _ONE if key in schema]
    for key in _SEVERAL:
        found += schema.get(key, [])
    for key in _NAMED:
        found += schema.get(key, {}).values()
    return found


def _fits_itself(value: Any, schema: Schema) -> bool:
    if "type" in schema and not any(_TYPES[kind](value) for kind in _types(schema["type"])):
        return False
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    return all(
        check(value, schema[key])
        for key, (concerns, check) in _LIMITS.items()
        if key in schema and concerns(value)
    )


def _fits_alternatives(value: Any, schema: Schema, root: Schema) -> bool:
    if "$ref" in schema and not fits(value, _target(schema["$ref"], root), root):
        return False
    fitting = {
        key: [fits(value, one, root) for one in schema[key]]
        for key in ("anyOf", "oneOf", "allOf")
        if key in schema
    }
    return (
        any(fitting.get("anyOf", [True]))
        and sum(fitting.get("oneOf", [True])) == 1
        and all(fitting.get("allOf", []))
    )


def _fits_object(value: dict[str, Any], schema: Schema, root: Schema) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(key in value for key in schema.get("required", ())) and all(
        fits(inner, known.get(key, others), root) for key, inner in value.items()
    )


def _fits_array(value: list[Any], schema: Schema, root: Schema) -> bool:
    first, others = schema.get("prefixItems", []), schema.get("items", True)
    return all(
        fits(inner, first[i] if i < len(first) else others, root) for i, inner in enumerate(value)
    )


def _target(name: str, root: Schema) -> Any:
    """Find what ``#/a/b`` names; None when there is no such thing."""
    if name != "#" and not name.startswith("#/"):
        return None
    found: Any = root
    for part in name.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = cast("Schema", found)[key]
    return found


def _types(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)
