"""Any other causal language model, through its own transformers forward. Correct, but slow.

Each slot keeps the cache object that transformers made for it, and each decoding step is one
forward per request; models with an unusual cache run without one. Prefixes are not reused, because
not every cache can be cut.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_agent.errors import WeightUpdateError


class FallbackModel:
    """Runs a transformers model behind the same interface as `DenseModel`."""

    reuses_prefixes = False
    prefill_tokens = 2048

    def __init__(self, model: Any, *, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._cache_name = _cache_name(model)
        self._slots: list[_Slot] = []
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])

    @classmethod
    def from_folder(
        cls, folder: Path, *, dtype: torch.dtype, device: torch.device
    ) -> "FallbackModel":
        """Load a Hugging Face folder.

        Raises:
            WeightUpdateError: its weights are incomplete or not finite.
        """
        return cls(load_reference(folder, dtype=dtype, device=device), dtype=dtype, device=device)

    def prepare(self, folder: Path) -> Any:
        """Load a second model next to the one that serves.

        Raises:
            WeightUpdateError: it is not of the same shape, incomplete, or not finite.
        """
        model = load_reference(folder, dtype=self._dtype, device=self._device)
        old = {name: tuple(p.shape) for name, p in self._model.named_parameters()}
        new = {name: tuple(p.shape) for name, p in model.named_parameters()}
        if old != new:
            different = sorted(set(old.items()) ^ set(new.items()))[:2]
            raise WeightUpdateError(f"the weights are of another model: {different}")
        return model

    def install(self, weights: Any) -> None:
        """Serve a prepared model from the next call on; caches are left as they are."""
        self._model = weights

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Hand a slot's cache on; the source slot is given up."""
        self._grow(max(source, target))
        self._slots[target] = self._slots[source]

    def swap_slots(self, a: int, b: int, length: int) -> None:
        self._grow(max(a, b))
        self._slots[a], self._slots[b] = self._slots[b], self._slots[a]

    @torch.inference_mode()
    def prefill(self, first_slot: int, rows: Sequence[list[int]], starts: list[int]) -> Tensor:
        """Fill slots one by one; returns logits float32 [B, V]."""
        self._grow(first_slot + len(rows) - 1)
        logits: list[Tensor] = []
        for slot, (row, start) in enumerate(zip(rows, starts, strict=True), first_slot):
            if start == 0:
                self._slots[slot] = _Slot()
            logits.append(self._forward(self._slots[slot], row))
        return torch.stack(logits)

    @torch.inference_mode()
    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """One forward per running slot; returns logits float32 [n, V]."""
        pairs = zip(self._slots, tokens.tolist(), strict=False)
        return torch.stack([self._forward(slot, [token]) for slot, token in pairs])

    @torch.inference_mode()
    def score(self, rows: Sequence[list[int]], temperature: float) -> list[list[float]]:
        """Logprob of each token given those before it; the first of a row gets 0."""
        return [reference_logprobs(self._model, row, temperature) for row in rows]

    def _forward(self, slot: "_Slot", row: list[int]) -> Tensor:
        slot.tokens += row
        if self._cache_name is None:
            ids = torch.tensor([slot.tokens], device=self._device)
            return self._model(input_ids=ids).logits[0, -1].float()
        ids = torch.tensor([row], device=self._device)
        out = self._model(input_ids=ids, use_cache=True, **{self._cache_name: slot.cache})
        slot.cache = getattr(out, self._cache_name)
        return out.logits[0, -1].float()

    def _grow(self, slot: int) -> None:
        self._slots += [_Slot() for _ in range(slot + 1 - len(self._slots))]


@dataclass(slots=True, eq=False)
class _Slot:
    tokens: list[int] = field(default_factory=list[int])
    cache: Any = None


def _cache_name(model: Any) -> str | None:
    """Name of the cache argument, which transformers has renamed; None: it is not a usual one."""
    known = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in known), None)


def load_reference(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Load a folder with transformers, refusing what it would fill in with random numbers.

    Raises:
        WeightUpdateError: the folder is unreadable, incomplete, or holds NaN or infinity.
    """
    factory: Any = AutoModelForCausalLM
    try:
        model, report = factory.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise WeightUpdateError(
            f"transformers could not load {str(folder)!r}: {type(error).__name__}: {error}"
        ) from error
    if report["missing_keys"] or report["mismatched_keys"]:
        raise WeightUpdateError(
            f"the weights in {str(folder)!r} do not fit their config: missing "
            f"{sorted(report['missing_keys'])[:3]}, of another shape "
            f"{sorted(report['mismatched_keys'])[:3]}"
        )
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise WeightUpdateError(f"expected finite numbers in {name}, got NaN or infinity")
    return model.to(device).eval()


@torch.inference_mode()
def reference_logprobs(model: Any, row: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Logprob of each token of `row` under a plain transformers forward; the first gets 0."""
    ids = torch.tensor([list(row)], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
    picked = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
    return [0.0, *picked.tolist()][: len(row)]
