"""Read settings: a YAML file, then overrides, then ``${…}``; checked before anything starts."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from pydantic import ValidationError

from areal_agent.config import interpolation, overrides, yaml_text
from areal_agent.config.base import ConfigModel
from areal_agent.config.origins import Given, Origin
from areal_agent.config.problems import Problems, sections
from areal_agent.config.yaml_text import Tree
from areal_agent.errors import ConfigError

if TYPE_CHECKING:
    from areal_agent.config.experiment import ExperimentConfig

C = TypeVar("C", bound=ConfigModel)


@dataclass(frozen=True)
class LoadedConfig(Generic[C]):
    """Settings, and what is known about them besides their values."""

    config: C
    """The settings."""

    base: Path
    """The settings file's folder: relative paths of workflows, datasets and models start here."""

    origins: Mapping[str, Origin]
    """Where each value comes from, by dotted path, in the order of the settings."""

    source: str
    """The settings file, as it was asked for."""


@overload
def load_config(
    path: str | Path, overrides: Iterable[str] = ()
) -> "LoadedConfig[ExperimentConfig]": ...
@overload
def load_config(
    path: str | Path, overrides: Iterable[str] = (), *, schema: type[C]
) -> LoadedConfig[C]: ...
def load_config(
    path: str | Path, overrides: Iterable[str] = (), *, schema: Any = None
) -> LoadedConfig[Any]:
    """Read a settings file.

    Args:
        path: a YAML file in UTF-8.
        overrides: ``section.key=value`` each; a later one wins.
        schema: what the file is read into. None takes `ExperimentConfig`.

    Raises:
        ConfigError: something is wrong; all problems are listed at once.
    """
    source = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"expected a settings file, got {source!r}: {error.strerror or error}"
        ) from error
    text = yaml_text.decode(data, source)
    base = Path(path).absolute().parent
    return parse_config(text, overrides, schema=schema, base=base, source=source)


def parse_config(
    text: str,
    override_texts: Iterable[str] = (),
    *,
    schema: type[C] | None = None,
    base: Path | None = None,
    source: str = "<text>",
) -> LoadedConfig[Any]:
    """Read settings from YAML text; see `load_config`.

    Args:
        text: the YAML.
        override_texts: ``section.key=value`` each.
        schema: what the text is read into. None takes `ExperimentConfig`.
        base: folder that relative paths start from. None takes the working directory.
        source: names the text in messages.

    Raises:
        ConfigError: something is wrong; all problems are listed at once.
    """
    from areal_agent.config.experiment import ExperimentConfig

    model: type[ConfigModel] = schema or ExperimentConfig
    given = Given.from_parsed(yaml_text.parse(text, source), source)
    problems = Problems(given, model, source)
    for override in override_texts:
        try:
            overrides.apply(given, override)
        except ConfigError as error:
            problems.found[str(error)] = None
    problems.raise_any()
    interpolation.resolve(given, _filled(model, given.tree, everything=True), problems)
    problems.raise_any()
    tree = _filled(model, given.tree, everything=False)
    try:
        config = model.model_validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        problems.add_invalid(error)
        problems.raise_any()
        raise
    origins = given.leaves(config.model_dump(mode="json"))
    return LoadedConfig(cast(Any, config), base or Path.cwd(), origins, source)


def dump_config(config: ConfigModel) -> str:
    """Write settings as YAML, each value in full, so that reading it gives the same settings."""
    return yaml_text.dump(interpolation.escape(config.model_dump(mode="json")))


def _filled(schema: type[Any], tree: Tree, *, everything: bool) -> Tree:
    """Return `tree` on top of its defaults.

    A section that is given in part keeps the rest of the default *that its parent has for it*,
    which may differ from the section's own defaults.

    Args:
        schema: the settings class of the tree.
        tree: what was given.
        everything: fill in all defaults, not only those that a parent sets for a section.
    """
    filled = dict(tree)
    for name, info in schema.model_fields.items():
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        if isinstance(default, ConfigModel):
            default_tree = default.model_dump(mode="json", exclude_unset=not everything)
            given = tree.get(name, {} if everything else None)
            if isinstance(given, dict) and _same_kind(given, default_tree):
                filled[name] = _filled(
                    type(default), {**default_tree, **given}, everything=everything
                )
        elif name in tree and isinstance(tree[name], dict):
            for section in sections(info.annotation)[:1]:
                filled[name] = _filled(section, tree[name], everything=everything)
        elif everything and not info.is_required() and name not in tree:
            filled[name] = str(default) if isinstance(default, Path) else default
    return filled


def _same_kind(given: Tree, default: Tree) -> bool:
    """Whether a given section is the kind that the default is; `type` tells them apart."""
    return "type" not in default or given.get("type", default["type"]) == default["type"]
