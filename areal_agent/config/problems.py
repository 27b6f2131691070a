"""Everything wrong with the settings, said in one go: where, what was expected, what was got."""

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from areal_agent.config import yaml_text
from areal_agent.config.checks import ContradictionError
from areal_agent.config.origins import Given, Origin, dotted
from areal_agent.config.yaml_text import Path
from areal_agent.errors import ConfigError
from areal_agent.registry import closest, did_you_mean

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a section of 'key: value' lines",
    "model_type": "a section of 'key: value' lines",
    "literal_error": "{expected}",
    "one_of": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_pattern_mismatch": "text that matches {pattern}",
}


@dataclass
class Problems:
    """Collects what is wrong and raises it as one error."""

    given: Given
    """What the user gave; names the lines."""

    schema: type[BaseModel]
    """What the settings are read into; knows the names that exist."""

    source: str
    """The settings file, as the user wrote its path."""

    found: dict[str, None] = field(default_factory=dict[str, None])
    """One text a problem, in order, each once."""

    def add(self, path: Path, message: str) -> None:
        """Note one problem with the value at `path`."""
        origin = self.given.nearest(path)
        name = f"{dotted(path)}: " if path else ""
        self.found[f"{_place(origin, self.source)}{name}{message}"] = None

    def add_invalid(self, error: ValidationError) -> None:
        """Note everything that pydantic found."""
        for one in _merged(error.errors(include_url=False)):
            cause = one.get("ctx", {}).get("error")
            if isinstance(cause, ContradictionError):
                for path, message in cause.problems:
                    self.add(path, message)
            else:
                self.add(one["loc"], self._explained(one))

    def raise_any(self) -> None:
        """Raise what was noted, if anything was."""
        if not self.found:
            return
        many = f"{len(self.found)} problems" if len(self.found) > 1 else "a problem"
        listed = "\n".join(f"  {problem}" for problem in self.found)
        raise ConfigError(f"{many} with the settings in {self.source}:\n{listed}")

    def _explained(self, error: Mapping[str, Any]) -> str:
        kind, value, path = error["type"], error["input"], error["loc"]
        context = error.get("ctx", {})
        if kind == "extra_forbidden":
            return f"there is no such setting{self._suggestion(path)}"
        if kind == "missing":
            return f"is missing: {_help(self.schema, path) or 'it has no default'}"
        if kind == "value_error":
            return str(context["error"])
        expected = _EXPECTED.get(kind)
        if expected is None:
            return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {_shown(value)}"
        known = (
            [*_literals(context.get("expected", ""))] if kind in ("literal_error", "one_of") else []
        )
        similar = did_you_mean(value, known) if isinstance(value, str) else ""
        advice = similar or self._quoting_advice(kind, value, path)
        return f"expected {expected.format(**context)}, got {_shown(value)}{advice}"

    def _quoting_advice(self, kind: str, value: Any, path: Path) -> str:
        """Say when only quotes are too few or too many."""
        if kind == "string_type" and isinstance(value, int | float):
            origin = self.given.nearest(path)
            if origin.kind == "override":
                key, _, text = origin.where.partition("=")
                return f": if it is meant as text, quote it twice: {key}='\"{text}\"'"
            return f": if it is meant as text, quote it: '{yaml_text.dump_value(value)}'"
        if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
            plain = yaml_text.parse_value(value.strip("'\""))
            return "" if isinstance(plain, str) else ": leave out the quotes"
        if kind == "int_type" and isinstance(value, float) and value.is_integer():
            return f": write {int(value)}"
        return ""

    def _suggestion(self, path: Path) -> str:
        """Find the setting that was meant: beside it first, then anywhere."""
        section, name = path[:-1], str(path[-1])
        known = list(_names(self.schema))
        beside = [one[-1] for one in known if one[:-1] == section]
        close = closest(name, beside)
        if close is not None:
            return f"; did you mean {dotted((*section, close))!r}?"
        elsewhere = [repr(dotted(one)) for one in known if one[-1] == name]
        if elsewhere:
            return f"; did you mean {' or '.join(elsewhere)}?"
        return f"; there are: {', '.join(beside)}" if beside else ""


def _merged(errors: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Make one of what pydantic says of a value that may be a literal or a number."""
    by_place: dict[Path, dict[str, Any]] = {}
    for number, one in enumerate(errors):
        path = one["loc"]
        kind = str(path[-1]) if path else ""
        if not kind.startswith("literal[") and kind not in ("float", "int"):
            by_place[(*path, number)] = dict(one)
            continue
        known = by_place.setdefault(path[:-1], {**one, "loc": path[:-1], "kinds": []})
        known["kinds"].append(_expected(one))
    for one in by_place.values():
        if len(kinds := one.pop("kinds", [])) > 1:
            one["type"], one["ctx"] = "one_of", {"expected": " or ".join(kinds)}
        yield one


def _expected(error: Mapping[str, Any]) -> str:
    template = _EXPECTED.get(error["type"]) or str(error["msg"])
    return template.format(**error.get("ctx", {}))


def _place(origin: Origin, source: str) -> str:
    if origin.kind == "file":
        return f"{origin.where}: "
    return f"override {origin.where}: " if origin.kind == "override" else f"{source}: "


def _names(schema: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in schema.model_fields.items():
        yield (*path, name)
        for section in sections(info.annotation):
            yield from _names(section, (*path, name))


def sections(annotation: Any) -> list[type[BaseModel]]:
    """Return the settings classes that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections(part)]


def _help(schema: type[BaseModel], path: Path) -> str:
    """Return the help string of the setting at `path`."""
    text = ""
    for part in path:
        info = schema.model_fields.get(str(part))
        if info is None:
            return ""
        text = " ".join((info.description or "").split())
        schema = next(iter(sections(info.annotation)), schema)
    return text


def _literals(expected: str) -> list[str]:
    return [part for i, part in enumerate(expected.split("'")) if i % 2]


def _shown(value: Any) -> str:
    """Return a value shortened, with YAML's words for what has none of its own in a file."""
    if value is None or isinstance(value, bool):
        return yaml_text.dump_value(value)
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 120
    return shortener.repr(value)
