"""Where each value of the settings comes from, and the tree of values that is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from areal_agent.config.yaml_text import Parsed, Path, Tree
from areal_agent.errors import ConfigError


@dataclass(frozen=True)
class Origin:
    """Where a value was given."""

    kind: Literal["default", "file", "override"]
    """Who gave it."""

    where: str = ""
    """``config.yaml:12`` for a file, the text of an override, nothing for a default."""

    written: str | None = None
    """What stands there, when it holds an interpolation."""

    def __str__(self) -> str:
        place = self.where if self.kind == "file" else f"{self.kind} {self.where}".rstrip()
        return f"{place} ({self.written})" if self.written is not None else place


DEFAULT = Origin("default")


@dataclass
class Given:
    """What a user gave, file and overrides together, before it is checked."""

    tree: Tree
    """The values."""

    origins: dict[Path, Origin] = field(default_factory=dict[Path, Origin])
    """The origin of each value and of each section."""

    @classmethod
    def from_parsed(cls, parsed: Parsed, source: str) -> "Given":
        """Take what stands in a file."""
        origins = {path: Origin("file", f"{source}:{n}") for path, n in parsed.lines.items()}
        return cls(parsed.tree, origins)

    def put(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Replace the value at `path`; sections on the way are made where there are none.

        Raises:
            ConfigError: there is a value where a section is needed.
        """
        section = self.tree
        for depth, key in enumerate(path[:-1], start=1):
            there = section.get(key)
            if there is not None and not isinstance(there, dict):
                place = self.nearest(path[:depth])
                raise ConfigError(
                    f"{origin}: {dotted(path[:depth])} is {there!r} ({place}), not a section: "
                    "give it as a whole"
                )
            if there is None:
                section[key] = {}
                self.claim(path[:depth], None, origin)
            section = section[key]
        section[path[-1]] = value
        self.claim(path, value, origin)

    def nearest(self, path: Path) -> Origin:
        """Return the origin of a value, or of the section that it would stand in."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return DEFAULT

    def leaves(self, tree: Tree) -> Mapping[str, Origin]:
        """Return the origin of each leaf of the complete `tree`, by dotted path."""
        return MappingProxyType(
            {dotted(path): self.origins.get(path, DEFAULT) for path, _ in leaves(tree)}
        )

    def claim(self, path: Path, value: Any, origin: Origin) -> None:
        """Say where the value at `path`, and everything in it, comes from."""
        for old in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[old]
        self.origins[path] = origin
        if isinstance(value, dict):
            for key, child in value.items():
                self.claim((*path, key), child, origin)


def leaves(tree: Tree, path: Path = ()) -> list[tuple[Path, Any]]:
    """Return each value that is no section; a list or an empty mapping is one value."""
    found: list[tuple[Path, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found += leaves(value, (*path, key))
        else:
            found.append(((*path, key), value))
    return found


def dotted(path: Path) -> str:
    """Return a path as users write it: ``gconfig.stop[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
