"""Run the episodes of one prompt together; those that survive form the group."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from areal_agent.aio import collect
from areal_agent.config.rollout_limits import GroupConfig, LimitsConfig
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout import context
from areal_agent.rollout.episode import DEFAULT_LIMITS, EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.group_reward import judge_group
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory, TrajectoryGroup
from areal_agent.types import INFRASTRUCTURE_OUTCOMES, TRAINABLE_OUTCOMES

DEFAULT_POLICY = GroupConfig()

OnEnd = Callable[[EpisodeRun], None]


@dataclass(frozen=True, slots=True)
class GroupRun:
    """All episodes of one prompt, in the order of their numbers; of each, its last try."""

    prompt_id: str
    runs: Sequence[EpisodeRun]
    why_dropped: str = ""
    """Why there is no group: ``too_few`` are left, or one failed and the others were cancelled,
    ``fail_fast``."""

    @property
    def survivors(self) -> list[EpisodeRun]:
        """Those that may be trained on."""
        return [run for run in self.runs if run.episode.outcome in TRAINABLE_OUTCOMES]

    @property
    def group(self) -> TrajectoryGroup | None:
        """The survivors' rows, or None when the group is dropped."""
        if self.why_dropped:
            return None
        return TrajectoryGroup(self.prompt_id, [run.rows for run in self.survivors])


class _FailedFast(Exception):
    """An episode failed, and its group ends with it."""


class _Ended:
    """The episodes of a group that have ended, and who hears of them."""

    def __init__(self, on_end: OnEnd | None, *, holds_back: bool) -> None:
        self._on_end = on_end
        self._holds_back = holds_back
        self._held: list[EpisodeRun] = []
        self._last: dict[int, EpisodeRun] = {}
        self._first_failed = ""

    @property
    def runs(self) -> list[EpisodeRun]:
        """The last try of each member."""
        return [self._last[sample] for sample in sorted(self._last)]

    @property
    def failed(self) -> bool:
        """Whether one failed that ends the group."""
        return bool(self._first_failed)

    def hear(self, sample: int, run: EpisodeRun) -> None:
        """A try has ended; those that are to be judged yet are told later."""
        if self.failed and run.episode.outcome == "cancelled":
            run = _because(run, f"episode {self._first_failed} of its group failed")
        self._last[sample] = run
        if self._holds_back and run.episode.outcome in TRAINABLE_OUTCOMES:
            self._held.append(run)
        elif self._on_end is not None:
            self._on_end(run)

    def has_failed(self, sample: int) -> bool:
        """Tell whether this member failed; the group then has."""
        episode = self._last[sample].episode
        if episode.failure is not None:
            self._first_failed = self._first_failed or episode.id
        return episode.failure is not None

    def release(self, judged: Sequence[EpisodeRun]) -> None:
        """Tell of those that were held back, as they were judged if they were."""
        if self._on_end is None or not self._held:
            return
        by_id = {run.episode.id: run for run in judged}
        for run in self._held:
            self._on_end(by_id.get(run.episode.id, run))


class GroupedRolloutWorkflow(RolloutWorkflow):
    """Runs `group_size` episodes of a workflow on each problem, concurrently.

    Each has its own copy of the data and its own context. One that fails leaves the others alone,
    unless the policy says otherwise.
    """

    def __init__(
        self,
        workflow: RolloutWorkflow,
        group_size: int,
        *,
        limits: LimitsConfig = DEFAULT_LIMITS,
        policy: GroupConfig = DEFAULT_POLICY,
        vocab_size: int | None = None,
    ) -> None:
        """Wrap a workflow.

        Args:
            workflow: what an episode does.
            group_size: episodes per prompt.
            limits: of one episode.
            policy: what happens when some of them fail.
            vocab_size: of the trained model; an episode with other token ids has failed.
        """
        if group_size < 1:
            raise ValueError(f"expected a group_size of 1 or more, got {group_size}")
        self.workflow = workflow
        self.group_size = group_size
        self._limits = limits
        self._policy = policy
        self._vocab_size = vocab_size

    async def run(
        self,
        engine: InferenceEngine,
        data: Mapping[str, Any],
        spec: EpisodeSpec,
        *,
        on_end: OnEnd | None = None,
        on_free: Callable[[], None] | None = None,
    ) -> GroupRun:
        """Run the group of `spec`.

        Args:
            engine: samples the replies.
            data: the dataset row.
            spec: of the group; its members' derive from it.
            on_end: hears of each try of an episode as soon as it ends, cancelled ones included;
                where a group is judged together, of those that ended well when that is done.
            on_free: called as soon as a member needs its place no more.
        """
        judge = self.workflow.group_reward
        ended = _Ended(on_end, holds_back=judge is not None)

        async def member(sample: int) -> None:
            try:
                await self._member(engine, data, spec, sample, partial(ended.hear, sample))
                if self._policy.fail_fast and ended.has_failed(sample):
                    raise _FailedFast
            finally:
                if on_free is not None:
                    on_free()

        runs: list[EpisodeRun] = []
        try:
            with suppress(_FailedFast):  # the others have been cancelled
                await collect([member(sample) for sample in range(self.group_size)])
            runs = ended.runs
            if judge is not None and not ended.failed:
                limits = self._limits
                runs = await judge_group(
                    judge, data, runs, seconds=limits.seconds, grace_seconds=limits.grace_seconds
                )
        finally:
            ended.release(runs)
        return GroupRun(spec.prompt_id, runs, self._why_dropped(runs, has_failed=ended.failed))

    async def _member(
        self,
        engine: InferenceEngine,
        data: Mapping[str, Any],
        group: EpisodeSpec,
        sample: int,
        on_end: OnEnd,
    ) -> None:
        """Run an episode, and run it again while it fails for no fault of the policy."""
        spec = first = replace(group, id=f"{group.id}:{sample}", sample=sample)
        for attempt in range(1, self._policy.retries + 2):
            run = await run_episode(
                self.workflow,
                engine,
                data,
                spec,
                limits=self._limits,
                vocab_size=self._vocab_size,
                on_end=on_end,
            )
            if run.is_given_up or run.episode.outcome not in INFRASTRUCTURE_OUTCOMES:
                return
            spec = first.retried(attempt)

    def _why_dropped(self, runs: Sequence[EpisodeRun], *, has_failed: bool) -> str:
        if has_failed:
            return "fail_fast"
        n = sum(run.episode.outcome in TRAINABLE_OUTCOMES for run in runs)
        return "too_few" if n < min(self._policy.min_size, self.group_size) else ""

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


def _because(run: EpisodeRun, why: str) -> EpisodeRun:
    failure = run.episode.failure
    assert failure is not None
    episode = replace(run.episode, failure=replace(failure, message=why))
    return replace(run, episode=episode, for_another=True)
