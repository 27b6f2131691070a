"""Group Relative Policy Optimization, with the decoupled objective for stale samples.

Legend: N rows, T tokens.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from pydantic import ValidationError
from torch import Tensor

from areal_agent.algorithms.advantages import group_advantages
from areal_agent.algorithms.base import LossOutput, Need
from areal_agent.algorithms.losses import ClipRange, policy_loss
from areal_agent.config.algorithm import GrpoConfig
from areal_agent.errors import ConfigError
from areal_agent.trajectory import RolloutBatch, TrainBatch


class Grpo:
    """An `Algorithm`: advantages against the group's mean, a clipped loss per token."""

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self._clip = ClipRange(low=config.eps_clip, high=config.clip_high)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make it from the dump of a `GrpoConfig`.

        Raises:
            ConfigError: a setting is unknown or out of range.
        """
        try:
            return cls(GrpoConfig.model_validate(dict(settings)))
        except ValidationError as error:
            raise ConfigError(f"these are no settings of grpo: {error}") from error

    @property
    def needs(self) -> frozenset[Need]:
        """The decoupled loss compares with the weights at the start of the step."""
        decoupled = self._config.use_decoupled_loss
        return frozenset[Need]({"prox_logprobs"} if decoupled else ())

    def advantages(self, batch: RolloutBatch) -> tuple[TrainBatch, dict[str, float]]:
        """See `Algorithm.advantages`. Every row may be dropped: the batch then has none.

        Raises:
            TrajectoryError: a reward is not finite.
        """
        found = group_advantages(
            batch.rewards,
            batch.group_ids,
            batch.episode_ids,
            normalize_by_std=self._config.normalize_by_std,
            std_eps=self._config.std_eps,
        )
        values: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(RolloutBatch)}
        values["advantages"] = found.values[:, None].expand_as(batch.logprobs).clone()
        values["prox_logprobs"] = batch.logprobs
        n_dropped = 0
        if self._config.drop_zero_variance:
            keep = found.has_signal
            n_dropped = int((~keep).sum())
            values = {n: v[keep] if isinstance(v, Tensor) else v for n, v in values.items()}
        metrics = {
            "reward": float(batch.rewards.double().mean()) if len(batch) else 0.0,
            "groups_without_signal": 1.0 - float(found.group_has_signal.double().mean()),
            "rows_dropped": float(n_dropped),
            "advantage_abs_max": float(found.values.abs().max()) if len(batch) else 0.0,
        }
        return TrainBatch(**values), metrics

    def loss(self, logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        """See `Loss`."""
        decoupled = self._config.use_decoupled_loss
        return policy_loss(
            logprobs,
            batch.prox_logprobs,
            batch.advantages,
            batch.loss_mask,
            clip=self._clip,
            behaviour_logprobs=batch.logprobs if decoupled else None,
            behaviour_cap=self._config.behave_imp_weight_cap,
        )
