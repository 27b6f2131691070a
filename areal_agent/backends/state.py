"""What a backend keeps between runs, as files: safetensors for tensors, JSON for numbers.

A folder holds ``weights.safetensors``, ``optimizer.safetensors``, ``random.safetensors`` and
``counters.json``. It is read and compared whole before anything is taken over.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_agent.errors import TrainError
from areal_agent.models.atomic_folder import atomic_folder

PARTS = ("weights", "optimizer", "random")


@dataclass(frozen=True, slots=True)
class BackendState:
    """Everything that decides how training goes on."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    """States of torch's random generators, one uint8 vector a device type."""
    counters: Mapping[str, int]


def write_state(state: BackendState, folder: Path) -> None:
    """Write `state` to `folder`, whole or not at all."""
    with atomic_folder(folder) as fresh:
        for part in PARTS:
            tensors: Mapping[str, Tensor] = getattr(state, part)
            packed = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
            save_file(packed, fresh / f"{part}.safetensors")
        text = json.dumps(dict(state.counters), indent=2)
        (fresh / "counters.json").write_text(text + "\n", "utf-8")


def read_state(folder: Path) -> BackendState:
    """Read what `write_state` wrote.

    Raises:
        TrainError: a file is missing or damaged.
    """
    try:
        parts = {part: load_file(folder / f"{part}.safetensors") for part in PARTS}
        counters: Any = json.loads((folder / "counters.json").read_text("utf-8"))
    except (OSError, SafetensorError, ValueError) as error:
        raise TrainError(
            f"the trainer's state in {str(folder)!r} cannot be read: {error}; resume from another "
            "checkpoint"
        ) from error
    if not isinstance(counters, dict):
        raise TrainError(
            f"expected an object in counters.json of {str(folder)!r}, got {counters!r}"
        )
    return BackendState(**parts, counters=cast("dict[str, int]", counters))


def check_fits(saved: BackendState, own: BackendState, folder: Path) -> None:
    """Compare names, shapes and precisions of what was read with what is there.

    Raises:
        TrainError: naming missing, unexpected and differing entries.
    """
    problems: list[str] = []
    for part in ("weights", "optimizer", "counters"):
        have: Mapping[str, Any] = getattr(saved, part)
        want: Mapping[str, Any] = getattr(own, part)
        problems += _list(f"missing in {part}", want.keys() - have.keys())
        problems += _list(f"unexpected in {part}", have.keys() - want.keys())
        differing = [
            f"{name} (expected {_describe(want[name])}, got {_describe(have[name])})"
            for name in want.keys() & have.keys()
            if _describe(want[name]) != _describe(have[name])
        ]
        problems += _list(f"different in {part}", differing)
    if "cpu" not in saved.random:
        problems.append("missing in random: cpu")
    if problems:
        raise TrainError(
            f"the trainer's state in {str(folder)!r} does not fit this model: "
            f"{'; '.join(problems)}. Nothing was changed; resume with the model it was saved from"
        )


def random_states() -> dict[str, Tensor]:
    """States of torch's generators: ``cpu``, and ``cuda`` where it is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Tensor]) -> None:
    """Take over what `random_states` gave, as far as the devices are there."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _list(title: str, names: Any) -> list[str]:
    names = sorted(names)
    if not names:
        return []
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [f"{title}: {', '.join(names[:5])}{rest}"]


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
