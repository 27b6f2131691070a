"""Write a model as an ordinary Hugging Face folder that any tool can load."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from areal_agent.errors import NonFiniteError
from areal_agent.models.atomic_folder import atomic_folder
from areal_agent.models.load import without_progress_bar

COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates",
)
"""What besides weights and config makes a folder usable: tokenizer and chat templates."""


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors with NaN or infinity in them.

    Raises:
        NonFiniteError: naming the first one.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            n_bad = int((~torch.isfinite(tensor)).sum())
            raise NonFiniteError(
                f"weight {name!r} has {n_bad} non-finite of {tensor.numel()} values: nothing was "
                "written; go back to an earlier checkpoint and lower the learning rate"
            )


def export_hf(
    model: PreTrainedModel,
    folder: Path,
    source_folder: Path,
    *,
    storage_dtype: torch.dtype | None = None,
) -> None:
    """Write `model` to `folder`, atomically, with the tokenizer files of `source_folder`.

    Args:
        model: on any device; it is not changed.
        folder: replaced when it exists.
        source_folder: where the model came from.
        storage_dtype: precision of the stored weights; None keeps the model's.

    Raises:
        NonFiniteError: a weight is not finite; nothing is written.
    """
    state: dict[str, Tensor] = model.state_dict()
    check_finite(state)
    if storage_dtype is not None:
        state = _converted(state, storage_dtype)
    with atomic_folder(folder) as fresh, without_progress_bar():
        model.save_pretrained(fresh, state_dict=state)
        if storage_dtype is not None:
            _note_dtype(fresh / "config.json", storage_dtype)
        _copy_companions(source_folder, fresh)


def _converted(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors that were one before (tied weights) are one afterwards too."""
    done: dict[int, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        if value.is_floating_point():
            value = done.setdefault(value.data_ptr(), value.to(dtype))
        out[name] = value
    return out


def _note_dtype(config: Path, dtype: torch.dtype) -> None:
    settings = json.loads(config.read_text("utf-8"))
    settings["dtype"] = str(dtype).removeprefix("torch.")
    config.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


def _copy_companions(source: Path, target: Path) -> None:
    for pattern in COPIED:
        for path in sorted(source.glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, target / path.name)
            elif not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)
