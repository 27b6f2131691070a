"""What an algorithm is: advantages of a batch, and a loss that is a sum.

Legend: N rows, T tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from areal_agent.trajectory import RolloutBatch, TrainBatch

Need = Literal["prox_logprobs"]
"""Logprobs under the weights at the start of the step."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Sums with counts. The backend divides once, over the global batch."""

    loss: Tensor
    """Scalar with gradient: the sum over the loss tokens of this micro-batch."""
    count: Tensor
    """Scalar: how many tokens (or sequences) the sum is over."""
    sums: Mapping[str, tuple[Tensor, Tensor]] = field(
        default_factory=dict[str, tuple[Tensor, Tensor]]
    )
    """Metrics to average: name to (sum, count), detached scalars."""
    maxima: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Metrics to take the maximum of, detached scalars."""


class Loss(Protocol):
    """A pure function of the trained logprobs and the batch."""

    def __call__(self, logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        """Sum the loss over this micro-batch.

        Args:
            logprobs: [N, T] with gradient, aligned with ``batch.input_ids`` (entry 0 is 0), at
                ``batch.temperatures``. Off ``loss_mask`` they may be anything, NaN included.
            batch: the micro-batch.
        """
        ...


class Algorithm(Protocol):
    """One member of the family, made from its settings."""

    @property
    def needs(self) -> frozenset[Need]:
        """What the loss compares with, besides the sampler's logprobs."""
        ...

    def advantages(self, batch: RolloutBatch) -> tuple[TrainBatch, dict[str, float]]:
        """Turn rewards into advantages; rows without signal may be dropped.

        Returns the batch to train on and metrics. Its `prox_logprobs` are the sampler's: whoever
        drives the algorithm replaces them when `needs` says so, for these rows only.
        """
        ...

    def loss(self, logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        """See `Loss`."""
        ...
