"""One episode: run it, record each model call, and end with exactly one outcome.

An exception in a workflow is data. It ends its episode and nothing else.
"""

import asyncio
import copy
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.data.call_ids import CallIds, set_call_ids
from areal_agent.data.seeds import derive_seed
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.clock import EpisodeClock
from areal_agent.rollout.context import WorkflowContext
from areal_agent.rollout.inputs import Inputs, TapedInputs
from areal_agent.rollout.limits import EpisodeLimits
from areal_agent.rollout.live import LiveEpisode, enter_episode
from areal_agent.rollout.outcomes import Ending, Judge, interrupts, of_cancellation, of_error
from areal_agent.rollout.recording import EpisodeEngine
from areal_agent.rollout.stoppable import Stoppable
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory
from areal_agent.types import Episode, PromptId, Tape

DEFAULT_LIMITS = LimitsConfig()


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Which episode this is. Its sampling seeds derive from these facts alone."""

    id: str
    prompt_id: PromptId
    seed: int
    """Of the run."""
    epoch: int
    index: int
    """Row of the dataset."""
    sample: int = 0
    """Member of the group."""
    is_eval: bool = False
    attempt: int = 0
    """How often it was run before and failed; each try has seeds of its own."""

    def retried(self, attempt: int) -> "EpisodeSpec":
        """Return the next try of this episode."""
        return replace(self, id=f"{self.id}~{attempt}", attempt=attempt)

    def tape(self, data: Mapping[str, Any]) -> Tape:
        """Return a new tape of this episode."""
        facts = {"seed": self.seed, "epoch": self.epoch, "index": self.index, "sample": self.sample}
        return Tape(facts | {"attempt": self.attempt} if self.attempt else facts, data)

    @property
    def random_seed(self) -> int:
        """Seed of the choices that the episode's own code makes."""
        kind = "random of eval" if self.is_eval else "random of train"
        return derive_seed(kind, self.seed, self.epoch, self.index, self.sample, *self._again)

    def call_seed(self, turn: int, configured: int | None) -> int:
        """Return the sampling seed of one model call; `configured` stands in for the run's."""
        return derive_seed(
            "eval" if self.is_eval else "train",
            self.seed if configured is None else configured,
            self.epoch,
            self.index,
            self.sample,
            turn,
            *self._again,
        )

    @property
    def _again(self) -> tuple[int | str, ...]:
        return ("again", self.attempt) if self.attempt else ()


@dataclass(frozen=True, slots=True)
class EpisodeRun:
    """What became of an episode: the record, and the rows to train on (none unless it may)."""

    episode: Episode
    rows: Sequence[Trajectory] = ()
    output_tokens: int = 0
    """Tokens that were sampled, trained on or not."""
    attempt: int = 0
    """How often it was run before and failed."""
    is_given_up: bool = False
    """It is not to be run again, whatever its outcome."""
    for_another: bool = False
    """It was cancelled because another one of its group failed."""


async def run_episode(
    workflow: RolloutWorkflow,
    engine: InferenceEngine,
    data: Mapping[str, Any],
    spec: EpisodeSpec,
    *,
    limits: LimitsConfig = DEFAULT_LIMITS,
    vocab_size: int | None = None,
    inputs: Inputs | None = None,
    on_end: Callable[[EpisodeRun], None] | None = None,
) -> EpisodeRun:
    """Run one episode on its own copy of `data`. Raises nothing but its own cancellation.

    Code that goes on after the episode's end was due is left behind after `limits.grace_seconds`.

    Args:
        workflow: what the episode does.
        engine: samples its replies.
        data: the dataset row.
        spec: which episode it is.
        limits: what it may use.
        vocab_size: of the trained model.
        inputs: stand in for the world, in a replay.
        on_end: hears how it ended, also when it was cancelled.
    """
    tape, used = spec.tape(data), EpisodeLimits(limits)
    clock = EpisodeClock(limits.seconds)
    live = _entered(spec, inputs or TapedInputs(tape, lambda: spec.random_seed), used, clock)
    recorder = EpisodeEngine(engine, spec.id, spec.call_seed, tape, used)
    recorder.live = live
    result: object = None
    error: BaseException | None = None
    try:
        async with clock.limit:
            code = _begun(workflow, recorder, copy.deepcopy(dict(data)))
            live.code = Stoppable(code, grace_seconds=limits.grace_seconds, nested=live.nested)
            result = await live.code
    except BaseException as caught:
        # The episode boundary: whatever a workflow raises becomes data.
        if interrupts(caught):
            raise
        error = caught
    recorder.close()
    if clock.limit.expired():
        used.out_of_time()
    # One more than is served everywhere: a server may have taken the next version already.
    judge = Judge(recorder.version + 1, vocab_size, trained=not spec.is_eval)
    is_cancelled = live.end()
    try:
        ending = _ending(judge, result, error, used, recorder, live)
        tape.rows = ending.rows
        run = _record(spec, recorder, ending, clock.seconds, tape, live)
        if on_end is not None:
            on_end(run)
        if is_cancelled:
            raise asyncio.CancelledError if error is None else error
        return run
    finally:
        error = None  # it leads to this frame


def _entered(
    spec: EpisodeSpec, inputs: Inputs, used: EpisodeLimits, clock: EpisodeClock
) -> LiveEpisode:
    """Make it the running episode of this task."""
    context = WorkflowContext(
        is_eval=spec.is_eval,
        task_id=spec.prompt_id,
        prompt_id=spec.prompt_id,
        episode_id=spec.id,
    )
    live = LiveEpisode(
        spec.id,
        spec.prompt_id,
        task=asyncio.current_task(),
        context=context,
        inputs=inputs,
        limits=used,
        clock=clock,
    )
    enter_episode(live)
    set_call_ids(CallIds(lambda: spec.random_seed))
    return live


def _begun(
    workflow: RolloutWorkflow, engine: InferenceEngine, data: dict[str, Any]
) -> Coroutine[Any, Any, object]:
    code: Any = workflow.arun_episode(engine, data)
    if inspect.iscoroutine(code) or isinstance(code, Coroutine):  # the first is quick
        return code  # pyright: ignore[reportUnknownVariableType]

    async def wait() -> object:
        return await code

    return wait()


def _ending(
    judge: Judge,
    result: object,
    error: BaseException | None,
    used: EpisodeLimits,
    recorder: EpisodeEngine,
    live: LiveEpisode,
) -> Ending:
    try:
        if live.why_stopped:
            return of_cancellation(error, live.why_stopped)
        if used.hit is not None:
            return judge.of_limit(used, recorder.interactions, error)
        return judge.of_result(result) if error is None else of_error(error)
    except Exception as unusable:  # noqa: BLE001 - users' values may do anything when looked at
        return of_error(unusable)


def _record(
    spec: EpisodeSpec,
    recorder: EpisodeEngine,
    ending: Ending,
    seconds: float,
    tape: Tape,
    live: LiveEpisode,
) -> EpisodeRun:
    calls = recorder.interactions
    versions = [v for call in calls for v in call.response.output_versions]
    rows, score = ending.rows, ending.score
    reward = sum(row.reward for row in rows) / len(rows) if rows else None
    episode = Episode(
        id=spec.id,
        prompt_id=spec.prompt_id,
        outcome=ending.outcome,
        interactions=calls if ending.interactions is None else ending.interactions,
        reward=reward if score is None else score.reward,
        metrics=_mean_metrics(rows) if score is None else score.metrics,
        failure=ending.failure,
        versions=(min(versions), max(versions)) if versions else None,
        seconds=seconds,
        tape=tape,
        limit=ending.limit,
    )
    return EpisodeRun(episode, rows, len(versions), spec.attempt, live.is_given_up)


def _mean_metrics(rows: Sequence[Trajectory]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(v) / len(v) for name, v in values.items()}
