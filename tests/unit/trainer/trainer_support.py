"""A scripted trainer and batches, for tests of the loop's halves."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from areal_agent.backends.base import LossSpec, StepResult
from areal_agent.errors import NonFiniteError
from areal_agent.trajectory import (
    RolloutBatch,
    TrainBatch,
    Trajectory,
    TrajectoryGroup,
    collate,
)


class ScriptedBackend:
    """A `BackendHandle` that remembers what it was asked."""

    def __init__(
        self, *, applied: Sequence[bool] = (), logprob: float = -0.5, finite: bool = True
    ) -> None:
        self.applied = list(applied)
        self.logprob = logprob
        self.finite = finite
        self.stepped: list[TrainBatch] = []
        self.exported: list[Path] = []

    async def logprobs(self, batch: RolloutBatch) -> Tensor:
        return torch.where(batch.loss_mask, self.logprob, 0.0)

    async def step(self, batch: TrainBatch, loss: LossSpec) -> StepResult:
        self.stepped.append(batch)
        applied = self.applied.pop(0) if self.applied else True
        return StepResult(applied, {"loss": float(len(batch)), "ratio_max": float(len(batch))})

    async def export(self, folder: Path) -> None:
        if not self.finite:
            raise NonFiniteError("weight 0 is not finite")
        folder.mkdir(parents=True)
        self.exported.append(folder)

    async def save(self, folder: Path) -> None:
        raise NotImplementedError

    async def load(self, folder: Path) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return


def row(reward: float, n_output: int = 3, version: int = 0) -> Trajectory:
    """Two prompt tokens and a reply whose logprobs are all -0.5."""
    return Trajectory(
        input_ids=[1, 2, *range(3, 3 + n_output)],
        loss_mask=[False, False, *[True] * n_output],
        logprobs=[0.0, 0.0, *[-0.5] * n_output],
        versions=[-1, -1, *[version] * n_output],
        reward=reward,
    )


def batch_of(*groups: Sequence[float], n_output: int = 3) -> RolloutBatch:
    """One group a list of rewards."""
    return collate(
        [
            TrajectoryGroup(f"0:{i}", [[row(reward, n_output)] for reward in rewards])
            for i, rewards in enumerate(groups)
        ]
    )
