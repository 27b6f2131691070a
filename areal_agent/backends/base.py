"""What every trainer of weights promises.

`TrainBackend` is the synchronous worker that holds the model. The driver talks to it through
`BackendHandle`, whose methods await: one rank may live in a child process, many in Ray actors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from areal_agent.algorithms.base import Loss
from areal_agent.trajectory import RolloutBatch, TrainBatch


@dataclass(frozen=True, slots=True)
class LossSpec:
    """Names a loss so that it can travel to another process: registry name and settings."""

    name: str
    """Name or import path in the algorithm registry."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimiser step did."""

    applied: bool
    """False when the gradient was not finite, or when no token was to be trained on: parameters
    and optimiser state are untouched."""
    metrics: Mapping[str, float]
    """Averages over the global batch: ``loss``, ``grad_norm``, ``lr``, and the loss's own."""


class TrainBackend(Protocol):
    """Holds the model and its optimiser on one rank. Synchronous."""

    def logprobs(self, batch: RolloutBatch) -> Tensor:
        """float32 [N, T] on CPU: entry t is log p(token t | before) at ``batch.temperatures``.

        Entry 0, padding, and positions off ``loss_mask`` are 0.
        """
        ...

    def step(self, batch: TrainBatch, loss: Loss) -> StepResult:
        """One optimiser step over the whole of `batch`, however it is cut inside.

        Raises:
            NonFiniteError: after `max_nonfinite_steps` skipped steps in a row.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder (config, safetensors, tokenizer), atomically.

        Raises:
            NonFiniteError: a weight is not finite; nothing is written.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimiser, scheduler and random state: safetensors and JSON."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote.

        Raises:
            TrainError: naming missing and unexpected keys; nothing was changed.
        """
        ...


class BackendHandle(Protocol):
    """The driver's side of a backend. Entered means that the model is loaded.

    Calls may overlap; they are carried out one at a time, in the order in which they were made.
    """

    async def logprobs(self, batch: RolloutBatch) -> Tensor:
        """See `TrainBackend.logprobs`."""
        ...

    async def step(self, batch: TrainBatch, loss: LossSpec) -> StepResult:
        """See `TrainBackend.step`."""
        ...

    async def export(self, folder: Path) -> None:
        """See `TrainBackend.export`."""
        ...

    async def save(self, folder: Path) -> None:
        """See `TrainBackend.save`."""
        ...

    async def load(self, folder: Path) -> None:
        """See `TrainBackend.load`."""
        ...

    async def __aenter__(self) -> Self:
        """Start the worker and load the model."""
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the worker."""
        ...
