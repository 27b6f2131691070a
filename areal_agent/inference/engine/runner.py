"""What the engine asks of a model: slots, prefill, decode, score, and new weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Runner(Protocol):
    """A model with one cache slot per running request. Used by one thread at a time.

    Only `prepare` may run in another thread meanwhile.
    """

    vocab_size: int
    reuses_prefixes: bool
    """Whether a slot's cache can be copied and cut, so that a common prefix is computed once."""
    prefill_tokens: int
    """Most tokens, padding included, that one call of `prefill` should get."""

    def prefill(self, first_slot: int, rows: Sequence[list[int]], starts: list[int]) -> Tensor:
        """Fill consecutive slots; returns logits after each row's last token, float32 [B, V]."""
        ...

    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Feed one token to each of the slots 0..n-1; returns logits, float32 [n, V]."""
        ...

    def score(self, rows: Sequence[list[int]], temperature: float) -> list[list[float]]:
        """Logprob of each token given those before it; the first of a row gets 0."""
        ...

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`."""
        ...

    def swap_slots(self, a: int, b: int, length: int) -> None:
        """Exchange two slots."""
        ...

    def prepare(self, folder: Path) -> Any:
        """Read and check new weights without serving them.

        Raises:
            WeightUpdateError: they cannot be served.
        """
        ...

    def install(self, weights: Any) -> None:
        """Serve what `prepare` returned, from the next call on."""
        ...
