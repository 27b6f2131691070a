"""From a Hugging Face folder to something the engine can run, checked against transformers."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from areal_agent.errors import ConfigError, InferenceError, WeightUpdateError
from areal_agent.inference.engine.fallback import FallbackModel, load_reference
from areal_agent.inference.engine.model import DenseModel
from areal_agent.inference.engine.runner import Runner
from areal_agent.inference.engine.shape import why_not_dense

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Largest difference of a logprob in float32; mean difference in bfloat16, where single logprobs
are off by tenths between any two implementations, and those of a wrong forward by whole ones."""
_UNKNOWN_LENGTH = 2048


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to serve."""

    runner: Runner
    tokenizer: Any
    max_model_len: int
    """Most tokens that the model was made for."""
    eos_ids: frozenset[int]


def load_model(folder: Path, *, dtype: str, device: str) -> LoadedModel:
    """Load weights and tokenizer of a folder.

    Llama, Qwen2 and Qwen3 run on the engine's own forward, whose logits are compared with those of
    transformers first. Others run on the transformers forward, and a warning says so.

    Raises:
        ConfigError: the folder is no usable model.
        InferenceError: the engine's forward does not agree with transformers.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"expected a Hugging Face model folder, got {str(folder)!r} without config.json: "
            "give the folder that save_pretrained or the trainer wrote"
        )
    place = torch.device(pick_device(device))
    precision: torch.dtype = getattr(torch, dtype)
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        runner = _runner(folder, config, precision, place)
    except (OSError, ValueError, WeightUpdateError) as error:
        raise ConfigError(f"cannot load the model in {str(folder)!r}: {error}") from error
    limit = getattr(config, "max_position_embeddings", None) or _UNKNOWN_LENGTH
    return LoadedModel(runner, tokenizer, int(limit), eos_ids(folder, config, tokenizer))


def pick_device(device: str) -> str:
    """Resolve `auto`.

    Raises:
        ConfigError: CUDA is asked for and absent.
    """
    present = torch.cuda.is_available()
    if device == "cuda" and not present:
        raise ConfigError(
            "device 'cuda' was asked for, but torch finds no CUDA: use 'cpu' or 'auto'"
        )
    return ("cuda" if present else "cpu") if device == "auto" else device


def eos_ids(folder: Path, config: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that end a reply, from the generation config, the model's config, the tokenizer."""
    found: set[int] = set()
    file = folder / "generation_config.json"
    generation: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    for value in (
        generation.get("eos_token_id"),
        getattr(config, "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ):
        if value is not None:
            found.update([value] if isinstance(value, int) else value)
    return frozenset(found)


def _runner(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, device: torch.device
) -> Runner:
    reason = why_not_dense(config)
    if reason is not None:
        logger.warning(
            "%s: the embedded engine runs this model on the transformers forward, one request at a "
            "time, which is many times slower than its own forward for Llama, Qwen2 and Qwen3",
            reason,
        )
        return FallbackModel.from_folder(folder, dtype=dtype, device=device)
    runner = DenseModel.from_folder(folder, config, dtype=dtype, device=device)
    differences = self_check(runner, load_reference(folder, dtype=dtype, device=device))
    exact = dtype == torch.float32
    difference = float(differences.max() if exact else differences.mean())
    if difference > _TOLERANCE[dtype]:
        raise InferenceError(
            f"the engine's logits differ from transformers' by {difference:.2e}, expected at most "
            f"{_TOLERANCE[dtype]:.0e} in {dtype}: please report this model's config.json"
        )
    logger.info("engine and transformers agree within %.1e", difference)
    return runner


@torch.inference_mode()
def self_check(runner: Runner, reference: Any) -> Tensor:
    """Differences of logprobs between the runner and a plain transformers forward.

    Two rows of different length go through prefill and a few decoding steps.
    """
    random = np.random.default_rng(0)
    rows = [random.integers(runner.vocab_size, size=n).tolist() for n in (13, 9)]
    prompts = [row[:-4] for row in rows]
    found = [runner.prefill(0, prompts, [0, 0])]
    for step in range(3):
        at = np.array([len(prompt) + step for prompt in prompts])
        tokens = np.array([row[i] for row, i in zip(rows, at, strict=True)])
        found.append(runner.decode(tokens, at))
    ours = torch.stack(found, 1).log_softmax(-1)  # [2, 4, V]
    differences: list[Tensor] = []
    for i, row in enumerate(rows):
        ids = torch.tensor([row], device=reference.device)
        logits = reference(input_ids=ids, use_cache=False).logits[0].float()
        theirs = logits[len(row) - 5 : len(row) - 1].log_softmax(-1)
        differences.append((ours[i] - theirs).abs())
    return torch.stack(differences)  # [2, 4, V]
