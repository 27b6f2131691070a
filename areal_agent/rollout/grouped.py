"""Run the episodes of one prompt together; those that survive form the group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_agent.aio import collect
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout import context
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.group_reward import judge_group
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory, TrajectoryGroup
from areal_agent.types import TRAINABLE_OUTCOMES

MIN_SURVIVORS = 2
"""Fewer cannot be compared with each other: the group is dropped."""


@dataclass(frozen=True, slots=True)
class GroupRun:
    """All episodes of one prompt, in the order of their numbers."""

    prompt_id: str
    runs: Sequence[EpisodeRun]

    @property
    def survivors(self) -> list[EpisodeRun]:
        """Those that may be trained on."""
        return [run for run in self.runs if run.episode.outcome in TRAINABLE_OUTCOMES]

    @property
    def group(self) -> TrajectoryGroup | None:
        """The survivors' rows, or None when there are fewer than two survivors."""
        survivors = self.survivors
        if len(survivors) < min(MIN_SURVIVORS, len(self.runs)):
            return None
        return TrajectoryGroup(self.prompt_id, [run.rows for run in survivors])


class GroupedRolloutWorkflow(RolloutWorkflow):
    """Runs `group_size` episodes of a workflow on each problem, concurrently.

    Each has its own copy of the data and its own context. One that fails leaves the others alone.
    """

    def __init__(
        self,
        workflow: RolloutWorkflow,
        group_size: int,
        *,
        timeout_seconds: float = 600.0,
        vocab_size: int | None = None,
    ) -> None:
        """Wrap a workflow.

        Args:
            workflow: what an episode does.
            group_size: episodes per prompt.
            timeout_seconds: of one episode.
            vocab_size: of the trained model; an episode with other token ids has failed.
        """
        if group_size < 1:
            raise ValueError(f"expected a group_size of 1 or more, got {group_size}")
        self.workflow = workflow
        self.group_size = group_size
        self._timeout_seconds = timeout_seconds
        self._vocab_size = vocab_size

    async def run(
        self,
        engine: InferenceEngine,
        data: Mapping[str, Any],
        spec: EpisodeSpec,
        *,
        on_done: Callable[[EpisodeRun | None], None] | None = None,
    ) -> GroupRun:
        """Run the group of `spec`.

        `on_done` hears of each episode as soon as it ends: its run, or None when it was cancelled.
        Where a group is judged together, it hears of all when that is done.
        """
        judge = self.workflow.group_reward

        async def one(sample: int) -> EpisodeRun:
            run: EpisodeRun | None = None
            try:
                run = await run_episode(
                    self.workflow,
                    engine,
                    data,
                    replace(spec, id=f"{spec.id}:{sample}", sample=sample),
                    timeout_seconds=self._timeout_seconds,
                    vocab_size=self._vocab_size,
                )
                return run
            finally:
                if on_done is not None and (judge is None or run is None):
                    on_done(run)

        runs = await collect([one(sample) for sample in range(self.group_size)])
        if judge is not None:
            runs = await judge_group(judge, data, runs, seconds=self._timeout_seconds)
            if on_done is not None:
                for run in runs:
                    on_done(run)
        return GroupRun(spec.prompt_id, runs)

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> list[Trajectory] | None:
        """Return the rows of all survivors, or None when there are too few."""
        around = context.get()
        name = around.episode_id or "group"
        spec = EpisodeSpec(
            id=name,
            prompt_id=around.prompt_id or name,
            seed=0,
            epoch=0,
            index=0,
            is_eval=around.is_eval,
        )
        group = (await self.run(engine, data, spec)).group
        return None if group is None else [row for rows in group.episodes for row in rows]
