"""Settings whose paths no longer depend on where they were read: what a run folder keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from areal_agent.config.experiment import ExperimentConfig, UseConfig
from areal_agent.models.load import BUILTIN_PREFIX


def pin_paths(config: ExperimentConfig, base: Path) -> ExperimentConfig:
    """Return the settings with every relative path taken from `base` and made absolute.

    These are the model folder, the file of the admin key, files that datasets and workflows come
    from, and the same inside ``reward_fn`` and ``tools``. Names that are no paths stay.
    """
    changes: dict[str, Any] = {
        name: _pin_use(use, base)
        for name in ("workflow", "train_dataset", "valid_dataset")
        if (use := getattr(config, name)) is not None
    }
    if not config.model.startswith(BUILTIN_PREFIX):
        changes["model"] = str((base / Path(config.model).expanduser()).absolute())
    if (key_file := config.gateway.admin_key_file) is not None:
        pinned = {"admin_key_file": (base / key_file.expanduser()).absolute()}
        changes["gateway"] = config.gateway.model_copy(update=pinned)
    changes["fileroot"] = config.fileroot.absolute()
    return config.model_copy(update=changes)


def _pin_use(use: UseConfig, base: Path) -> UseConfig:
    return use.model_copy(
        update={"use": _pin_name(use.use, base), "args": _pin_args(use.args, base)}
    )


def _pin_args(args: Mapping[str, Any], base: Path) -> dict[str, Any]:
    out = dict(args)
    if isinstance(out.get("reward_fn"), str):
        out["reward_fn"] = _pin_name(out["reward_fn"], base)
    if isinstance(out.get("tools"), list):
        tools = cast("list[Any]", out["tools"])
        out["tools"] = [_pin_name(t, base) if isinstance(t, str) else t for t in tools]
    return out


def _pin_name(name: str, base: Path) -> str:
    """``file.py:Name`` and ``rows.jsonl`` become absolute."""
    target, colon, attribute = name.rpartition(":")
    if colon and target.endswith(".py"):
        return f"{(base / target).absolute()}:{attribute}"
    if name.endswith((".jsonl", ".json")):
        return str((base / name).absolute())
    return name
