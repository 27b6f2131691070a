"""The reference of all settings as Markdown, from the help strings below the fields."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from areal_agent.config import yaml_text
from areal_agent.config.problems import sections

_TYPES: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    NoneType: "null",
    Any: "anything",
}
_BOUNDS = (
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "≤"),
    (annotated_types.Lt, "lt", "<"),
)

Places = dict[type[BaseModel], dict[str, Any]]
"""Each section class, with where it stands and the default it has there."""


def reference_markdown(roots: Mapping[str, type[BaseModel]]) -> str:
    """Return the reference page.

    Args:
        roots: each kind of settings file, by the heading of its part.
    """
    parts = [
        "# All settings",
        "This page is generated from the help strings in the code, by "
        "`docs/generate_configuration.py`. [Settings](settings.md) explains how files, "
        "overrides and `${...}` work.",
    ]
    for heading, root in roots.items():
        parts += [f"## {heading}", *_part(root)]
    return "\n\n".join(parts) + "\n"


def _part(root: type[BaseModel]) -> list[str]:
    places: Places = {root: {"": None}}
    _collect(root, "", None, places)
    parts: list[str] = []
    for section, where in places.items():
        if section is not root:
            parts.append("### " + ", ".join(f"`{name}`" for name in where))
        parts.append(_one_line(section.__doc__ or ""))
        parts.append(_table(section, where))
    return parts


def _collect(section: type[BaseModel], prefix: str, default: Any, places: Places) -> None:
    for name, info in section.model_fields.items():
        inner = _default(name, info, default)
        for child in sections(info.annotation):
            path = f"{prefix}{name}"
            places.setdefault(child, {})[path] = inner if isinstance(inner, child) else None
            _collect(child, f"{path}.", inner, places)


def _table(section: type[BaseModel], where: Mapping[str, Any]) -> str:
    rows = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    for name, info in section.model_fields.items():
        cells = (f"`{name}`", _value(info), _shown_default(name, info, where), info.description)
        rows.append("| " + " | ".join(_one_line(cell or "").replace("|", "\\|") for cell in cells)
                    + " |")  # fmt: skip
    return "\n".join(rows)


def _shown_default(name: str, info: FieldInfo, where: Mapping[str, Any]) -> str:
    defaults: dict[str, list[str]] = {}
    for place, default in where.items():
        defaults.setdefault(_written(_default(name, info, default), info), []).append(place)
    if len(defaults) == 1:
        return next(iter(defaults))
    return ", ".join(
        f"{text} in {' and '.join(f'`{place}`' for place in places)}"
        for text, places in defaults.items()
    )


def _default(name: str, info: FieldInfo, parent: Any) -> Any:
    """Return a field's default as its parent's default has it, or its own; `...` for none."""
    if parent is not None and hasattr(parent, name):
        return getattr(parent, name)
    return ... if info.is_required() else info.get_default(call_default_factory=True)


def _written(default: Any, info: FieldInfo) -> str:
    if default is ...:
        return "required"
    if isinstance(default, BaseModel):
        return "see its section"
    plain = list(default) if isinstance(default, tuple) else default
    return f"`{yaml_text.dump_value(str(plain) if isinstance(plain, Path) else plain)}`"


def _value(info: FieldInfo) -> str:
    text = _type(info.annotation)
    for kind, attribute, sign in _BOUNDS:
        for bound in info.metadata:
            if isinstance(bound, kind):
                text += f", {sign} {getattr(bound, attribute)}"
    for rule in info.metadata:
        if getattr(rule, "pattern", None):
            text += f", matches `{rule.pattern}`"
    return text


def _type(annotation: Any) -> str:
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if kind in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    if kind in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if kind is dict:
        return "section of any keys"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _TYPES[annotation]


def _one_line(text: str) -> str:
    return " ".join(text.split())
