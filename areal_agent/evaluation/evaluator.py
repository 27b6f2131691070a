"""Held-out accuracy: the mean reward of episodes that could be scored."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from areal_agent.config.experiment import ExperimentConfig
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.evaluate import run_all
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.types import TRAINABLE_OUTCOMES, Episode


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluation. Failed episodes are counted, never scored."""

    mean: float
    """Mean reward of scored episodes; NaN without any."""
    stderr: float
    """Standard error of the mean."""
    n_scored: int
    n_failed: int
    seconds: float
    outcomes: Mapping[str, int]
    versions: tuple[int, int] | None
    """Oldest and newest weights that answered."""
    episodes: Sequence[Episode]

    def metrics(self, prefix: str) -> dict[str, float]:
        """Flat numbers for the log."""
        out: dict[str, float] = {
            f"{prefix}/reward": self.mean,
            f"{prefix}/stderr": self.stderr,
            f"{prefix}/n": self.n_scored,
            f"{prefix}/failed": self.n_failed,
            f"timeperf/{prefix}": self.seconds,
        }
        if self.versions is not None:
            out[f"{prefix}/version_min"], out[f"{prefix}/version_max"] = self.versions
        return out


class Evaluator:
    """Runs a workflow once on each of a fixed list of problems.

    It takes no place in the training gate and none of training's seeds; it runs on whatever
    weights are served and records them.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        rows: Sequence[Mapping[str, Any]],
        *,
        max_concurrent_rollouts: int,
        limits: LimitsConfig,
        seed: int,
    ) -> None:
        self.engine = engine
        self.rows = rows
        self.max_concurrent_rollouts = max_concurrent_rollouts
        self.limits = limits
        self.seed = seed

    @classmethod
    def of(
        cls,
        engine: InferenceEngine,
        rows: Sequence[Mapping[str, Any]],
        config: ExperimentConfig,
    ) -> Self:
        """Make one as the settings of an experiment say."""
        return cls(
            engine,
            rows,
            max_concurrent_rollouts=config.evaluator.max_concurrent_rollouts,
            limits=config.rollout.limits,
            seed=config.seed,
        )

    async def evaluate(
        self,
        workflow: RolloutWorkflow,
        *,
        n_problems: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> EvalResult:
        """Run the first `n_problems` problems (None: all).

        `progress` hears how many are done, `on_episode` of each that has ended.
        """
        started = time.perf_counter()
        episodes = await run_all(
            self.engine,
            workflow,
            list(self.rows[:n_problems]),
            max_concurrent=self.max_concurrent_rollouts,
            limits=self.limits,
            seed=self.seed,
            progress=progress,
            on_episode=on_episode,
        )
        return summarise(episodes, seconds=time.perf_counter() - started)


def summarise(episodes: Sequence[Episode], *, seconds: float) -> EvalResult:
    """Mean and standard error over the episodes that ended with a reward."""
    rewards = [
        episode.reward
        for episode in episodes
        if episode.outcome in TRAINABLE_OUTCOMES and episode.reward is not None
    ]
    n = len(rewards)
    mean = sum(rewards) / n if n else math.nan
    variance = sum((reward - mean) ** 2 for reward in rewards) / (n - 1) if n > 1 else 0.0
    spans = [episode.versions for episode in episodes if episode.versions is not None]
    return EvalResult(
        mean=mean,
        stderr=math.sqrt(variance / n) if n else math.nan,
        n_scored=n,
        n_failed=len(episodes) - n,
        seconds=seconds,
        outcomes=dict(Counter(episode.outcome for episode in episodes)),
        versions=(min(v[0] for v in spans), max(v[1] for v in spans)) if spans else None,
        episodes=episodes,
    )
