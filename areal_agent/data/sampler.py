"""Which problem comes next: every row once per epoch, in an order fixed by seed and epoch.

The sampler has no batches, so none can be ragged: whoever takes 8 rows at a time from 10 gets the
last 2 together with the first 6 of the next epoch.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any, Self

from areal_agent.data.seeds import derive_seed
from areal_agent.errors import DataError


def epoch_order(n: int, seed: int, epoch: int) -> list[int]:
    """The order of `n` rows in `epoch`: a function of its arguments and nothing else."""
    order = list(range(n))
    random.Random(derive_seed("epoch_order", seed, epoch)).shuffle(order)
    return order


class PromptSampler(Iterator[tuple[int, int]]):
    """Yields ``(epoch, index)``, epoch after epoch, and can be stopped and taken up anywhere."""

    def __init__(self, n: int, seed: int, *, epochs: int | None = None) -> None:
        """Start at the first row of epoch 0.

        Args:
            n: rows in the dataset.
            seed: fixes the order of every epoch.
            epochs: stop after so many; None goes on for ever.

        Raises:
            DataError: there is no row.
        """
        if n < 1:
            raise DataError(f"expected a dataset of at least 1 row, got {n}")
        self.n = n
        self.seed = seed
        self.epochs = epochs
        self._epoch = 0
        self._position = 0
        self._order = epoch_order(n, seed, 0)

    def __iter__(self) -> Self:
        """Return the sampler itself; it has one cursor."""
        return self

    def __next__(self) -> tuple[int, int]:
        """Return the next row's epoch and index."""
        if self._position == self.n:
            self._move_to(self._epoch + 1, 0)
        if self.epochs is not None and self._epoch >= self.epochs:
            raise StopIteration
        item = (self._epoch, self._order[self._position])
        self._position += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor, as JSON can hold it."""
        return {
            "n": self.n,
            "seed": self.seed,
            "epoch": self._epoch,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            DataError: the state is of another dataset size or seed, or is not a cursor.
        """
        try:
            n, seed, epoch, position = (int(state[k]) for k in ("n", "seed", "epoch", "position"))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"expected a sampler's state, got {dict(state)!r}") from error
        if (n, seed) != (self.n, self.seed):
            raise DataError(
                f"the saved order is of {n} rows and seed {seed}, the dataset has {self.n} rows "
                f"and seed {self.seed}: continue with the same data and seed, or start anew"
            )
        if epoch < 0 or not 0 <= position <= n:
            raise DataError(f"expected a cursor within the dataset, got {dict(state)!r}")
        self._move_to(epoch, position)

    def _move_to(self, epoch: int, position: int) -> None:
        if epoch != self._epoch:
            self._order = epoch_order(self.n, self.seed, epoch)
        self._epoch, self._position = epoch, position
