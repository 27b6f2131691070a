"""Supervised fine-tuning: cross-entropy on the tokens that the loss mask names."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from areal_agent.algorithms.base import LossOutput
from areal_agent.errors import ConfigError
from areal_agent.trajectory import TrainBatch


class Sft:
    """Maximum likelihood. Advantages and the sampler's logprobs are not looked at."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make it; there is nothing to set.

        Raises:
            ConfigError: `settings` is not empty.
        """
        if settings:
            raise ConfigError(f"sft has no settings, got {dict(settings)!r}: remove them")
        return cls()

    def loss(self, logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        """Negative log-likelihood, summed over the loss mask."""
        kept = torch.where(batch.loss_mask, logprobs, 0.0)
        return LossOutput(loss=-kept.sum(), count=batch.loss_mask.sum())
