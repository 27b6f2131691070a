"""``${other.key}`` in settings, by OmegaConf: relative keys and ``${oc.env:NAME}`` work too."""

import re
from typing import TYPE_CHECKING, Any

from areal_agent.config.origins import Given, Origin
from areal_agent.config.yaml_text import Path, Tree

if TYPE_CHECKING:
    from areal_agent.config.problems import Problems


def resolve(given: Given, complete: Tree, problems: "Problems") -> None:
    """Replace each interpolation in `given` by its value.

    Args:
        given: what a user gave; changed in place.
        complete: the same with the defaults filled in: what an interpolation may point at.
        problems: takes the interpolations that cannot be resolved.
    """
    found = _interpolations(given.tree)
    if not found:
        return
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    readable = True
    for path, text in found:
        try:
            OmegaConf.create({"value": text})
        except OmegaConfBaseException as error:
            readable = False
            problems.add(path, f"expected ${{other.key}}, got {text!r}: {_first_line(error)}")
    if not readable:
        return
    root = OmegaConf.create(complete)
    for path, text in found:
        try:
            value = _plain(root, path)
        except OmegaConfBaseException as error:
            problems.add(path, f"{text!r} cannot be resolved: {_first_line(error)}")
        else:
            _replace(given, path, value, text)


def escape(value: Any) -> Any:
    """Return a tree in which text that looks like an interpolation stands for itself."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match.group(1) * 2 + r"\${", value)
    if isinstance(value, dict):
        return {key: escape(child) for key, child in value.items()}
    if isinstance(value, list):
        return [escape(child) for child in value]
    return value


def _interpolations(value: Any, path: Path = ()) -> list[tuple[Path, str]]:
    if isinstance(value, str):
        return [(path, value)] if "${" in value else []
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [pair for key, child in children for pair in _interpolations(child, (*path, key))]


def _plain(root: Any, path: Path) -> Any:
    from omegaconf import OmegaConf

    node = root
    for key in path:
        node = node[key]
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _replace(given: Given, path: Path, value: Any, text: str) -> None:
    parent: Any = given.tree
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    in_list = next((i for i, key in enumerate(path) if isinstance(key, int)), None)
    origin = given.nearest(path[:in_list])
    noted = Origin(origin.kind, origin.where, text)
    given.claim(path[:in_list], value if in_list is None else None, noted)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
