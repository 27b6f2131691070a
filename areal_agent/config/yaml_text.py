"""YAML as settings use it: what stands in the text is what is read, each value with its line.

Scalars follow YAML 1.2's core schema where YAML 1.1 would surprise: ``1e-5`` is a number, ``no``,
``on``, ``12:30`` and ``2024-01-31`` are text, and ``007`` is text too. What `dump` writes, `parse`
reads back unchanged, and so does a YAML 1.1 reader.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from areal_agent.errors import ConfigError

Tree = dict[str, Any]
"""A settings file as nested dicts, lists and scalars."""

Path = tuple[str | int, ...]
"""Where a value stands in a tree: keys, and indices of lists."""

_NUMBER = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
_SCHEMA = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9]*)",
    "float": rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "merge": r"<<",
}
_TAG = "tag:yaml.org,2002:"
_CONSTRUCT: Mapping[str, Callable[[str], Any]] = {
    "str": lambda text: text.encode().decode(),  # refuses half a surrogate pair
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
}


def _resolvers(more: Mapping[Any, Any] = MappingProxyType({})) -> dict[Any, Any]:
    core = [(_TAG + name, re.compile(rf"(?:{pattern})\Z")) for name, pattern in _SCHEMA.items()]
    return {**more, None: core, "": [core[0]]}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers()


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else."""

    yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(_TAG + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


@dataclass(frozen=True)
class Parsed:
    """What a text holds."""

    tree: Tree
    """The settings."""

    lines: dict[Path, int]
    """The line of each value, counted from 1."""


def decode(data: bytes, source: str) -> str:
    """Return UTF-8 bytes as text without a byte-order mark.

    Raises:
        ConfigError: `data` is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}:{line}: expected UTF-8 text, got the byte {data[error.start]:#04x} at "
            f"offset {error.start}: save the file as UTF-8"
        ) from error


def parse(text: str, source: str) -> Parsed:
    """Read a settings file's text. An empty one gives an empty tree.

    Raises:
        ConfigError: not YAML, not a mapping, a key twice, or a tag that settings have no use for.
    """
    reader = _Reader(source)
    node = reader.compose(text)
    if node is None:
        return Parsed({}, {})
    value = reader.value(node, ())
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: expected 'key: value' lines, got {value!r}")
    return Parsed(value, reader.lines)


def parse_value(text: str) -> Any:
    """Read one value as it is typed on a command line.

    ``[1, 2]``, ``{a: 1}`` and quoted text are read as YAML; everything else is one scalar, taken
    whole, so that neither ``a: b`` nor ``a #b`` means more than it says. Nothing at all is ``""``.

    Raises:
        ConfigError: a bracket or a quote is opened but the rest does not parse.
    """
    text = text.strip()
    if text == "":
        return ""
    reader = _Reader(text)
    if text[0] in "[{\"'":
        node = reader.compose(text)
        if node is None:
            return None
        return reader.value(node, ())
    return reader.scalar(yaml.ScalarNode(_implicit_tag(text), text))


def dump(tree: Tree) -> str:
    """Write a tree as YAML that `parse` reads back unchanged, nulls included."""
    return _written(tree, flow=False)


def dump_value(value: Any) -> str:
    """Write one value on one line, so that `parse_value` reads it back unchanged."""
    if value == "":
        return '""'
    return _written(value, flow=True).removesuffix("\n").removesuffix("\n...")


def _written(value: Any, *, flow: bool) -> str:
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=flow,
        width=float("inf"),
    )


def _implicit_tag(text: str) -> str:
    for tag, pattern in _Loader.yaml_implicit_resolvers[None]:
        if pattern.match(text):
            return tag
    return _TAG + "str"


class _Reader:
    """Turns YAML nodes into plain values and notes their lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self._open: list[yaml.Node] = []

    def compose(self, text: str) -> yaml.Node | None:
        try:
            loader = _Loader(text)
            try:
                return loader.get_single_node()
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = ", ".join(part for part in (error.context, error.problem) if part)
            raise ConfigError(f"{self._at(mark)}: expected YAML: {what}") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"{self.source}: expected YAML: {error}") from error

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if node in self._open:
            raise ConfigError(f"{self._at(node.start_mark)}: an anchor contains itself")
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            raise ConfigError(
                f"{self._at(node.start_mark)}: expected plain YAML, got the tag {node.tag!r}"
            )
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return {key: self.value(child, (*path, key)) for key, child in self._items(node)}
            return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]
        finally:
            self._open.pop()

    def scalar(self, node: yaml.ScalarNode) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        try:
            return _CONSTRUCT[kind](text)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"{self._at(node.start_mark)}: expected plain YAML, got {text!r} tagged {kind!r}"
            ) from error

    def _items(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
        """Yield the entries of a mapping, those that are merged in with ``<<`` first."""
        own: dict[str, yaml.Node] = {}
        for key_node, child in node.value:
            if key_node.tag == _TAG + "merge":
                yield from self._merged(child)
                continue
            key = self.scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            where = self._at(key_node.start_mark)
            if not isinstance(key, str):
                raise ConfigError(f"{where}: expected text as key, got {key!r}: quote it")
            if key in own:
                raise ConfigError(f"{where}: the key {key!r} stands twice: remove one")
            own[key] = child
        yield from own.items()

    def _merged(self, node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
        sources = reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise ConfigError(
                    f"{self._at(node.start_mark)}: expected a mapping (or a list of them) after <<"
                )
            yield from self._items(source)

    def _at(self, mark: Any) -> str:
        if mark is None:
            return self.source
        return f"{self.source}:{mark.line + 1}:{mark.column + 1}"
