"""What ``areal-agent config`` shows: the resolved settings, each with its origin."""

import re
from typing import Any

from areal_agent.config import interpolation, yaml_text
from areal_agent.config.base import ConfigModel
from areal_agent.config.load import LoadedConfig
from areal_agent.config.origins import Origin, dotted
from areal_agent.config.yaml_text import Path, Tree

_WIDEST_VALUE = 60


def render_config(loaded: LoadedConfig[Any]) -> str:
    """Return the settings as YAML, the origin of each value in a comment beside it.

    The text is a settings file itself and gives the same settings when it is read.
    """
    lines = _lines(interpolation.escape(loaded.config.model_dump(mode="json")), ())
    widths = [len(text) for text, path in lines if path is not None]
    column = max((width for width in widths if width <= _WIDEST_VALUE), default=0)
    head = [
        f"# {_one_line(loaded.source)} with defaults and overrides filled in",
        f"# relative paths start at {_one_line(str(loaded.base))}",
    ]
    body = [
        text if path is None else f"{text:<{column}}  # {_one_line(str(origin(loaded, path)))}"
        for text, path in lines
    ]
    return "\n".join([*head, *body]) + "\n"


def config_as_json(loaded: LoadedConfig[Any]) -> dict[str, Any]:
    """Return the settings and their origins as JSON-ready dicts."""
    return {
        "source": loaded.source,
        "base": str(loaded.base),
        "config": loaded.config.model_dump(mode="json"),
        "origins": {name: str(where) for name, where in loaded.origins.items()},
    }


def json_schema(schema: type[ConfigModel] | None = None) -> dict[str, Any]:
    """Return the JSON schema of a settings file, for editors that complete and check it."""
    from areal_agent.config.experiment import ExperimentConfig

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **(schema or ExperimentConfig).model_json_schema(),
    }


def origin(loaded: LoadedConfig[Any], path: Path) -> Origin:
    """Return where the value at `path` comes from; a section that is one line has its first's."""
    name = dotted(path)
    if name in loaded.origins:
        return loaded.origins[name]
    return next(where for key, where in loaded.origins.items() if key.startswith(name + "."))


def _lines(tree: Tree, path: Path) -> list[tuple[str, Path | None]]:
    """Return each line with the path of its value; a section's heading has none."""
    found: list[tuple[str, Path | None]] = []
    indent = "  " * len(path)
    for key, value in tree.items():
        inner = (*path, key)
        if isinstance(value, dict) and value and all(map(_is_plain, value)):
            found += [(f"{indent}{key}:", None), *_lines(value, inner)]
        else:
            found.append((f"{indent}{key}: {yaml_text.dump_value(value)}", inner))
    return found


def _is_plain(key: str) -> bool:
    """Whether a key can stand alone at the start of a line."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,80}", key) is not None
    return plain and yaml_text.dump_value(key) == key


def _one_line(text: str) -> str:
    return " ".join(text.split()) if text.isprintable() else repr(text)
