"""One episode: run it, record each model call, and end with exactly one outcome.

An exception in a workflow is data. It ends its episode and nothing else.
"""

import asyncio
import copy
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from areal_agent.aio import first_error
from areal_agent.data.seeds import derive_seed
from areal_agent.errors import InferenceError, RewardError, SessionTimeout, TrajectoryError
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.checks import check_rows
from areal_agent.rollout.clock import start_clock
from areal_agent.rollout.context import WorkflowContext, set_context, set_inputs
from areal_agent.rollout.inputs import Inputs, TapedInputs
from areal_agent.rollout.live import LiveEpisode, enter_episode
from areal_agent.rollout.recording import EpisodeEngine
from areal_agent.rollout.results import as_trajectories
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory
from areal_agent.types import Episode, Failure, Interaction, Outcome, PromptId, Score, Tape

_MAX_TRACEBACK_CHARS = 8_000
_MAX_MESSAGE_CHARS = 2_000


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

    def tape(self, data: Mapping[str, Any]) -> Tape:
        """Return a new tape of this episode."""
        facts = {"seed": self.seed, "epoch": self.epoch, "index": self.index, "sample": self.sample}
        return Tape(facts, data)

    @property
    def random_seed(self) -> int:
        """Seed of the choices that the episode's own code makes."""
        kind = "random of eval" if self.is_eval else "random of train"
        return derive_seed(kind, self.seed, self.epoch, self.index, self.sample)

    def call_seed(self, turn: int, configured: int | None) -> int:
        """Return the sampling seed of one model call; `configured` stands in for the run's."""
        return derive_seed(
            "eval" if self.is_eval else "train",
            self.seed if configured is None else configured,
            self.epoch,
            self.index,
            self.sample,
            turn,
        )


@dataclass(frozen=True, slots=True)
class EpisodeRun:
    """What became of an episode: the record, and the rows to train on (none unless it may)."""

    episode: Episode
    rows: Sequence[Trajectory] = ()
    output_tokens: int = 0
    """Tokens that were sampled, trained on or not."""


@dataclass(slots=True)
class _Ending:
    outcome: Outcome
    rows: list[Trajectory] = field(default_factory=list[Trajectory])
    interactions: Sequence[Interaction] | None = None
    failure: Failure | None = None
    score: Score | None = None
    """Stands in for rows, in evaluation."""


async def run_episode(
    workflow: RolloutWorkflow,
    engine: InferenceEngine,
    data: Mapping[str, Any],
    spec: EpisodeSpec,
    *,
    timeout_seconds: float,
    vocab_size: int | None = None,
    inputs: Inputs | None = None,
) -> EpisodeRun:
    """Run one episode on its own copy of `data`. Raises nothing but its own cancellation.

    `inputs` stand in for the world, in a replay.
    """
    set_context(
        WorkflowContext(
            is_eval=spec.is_eval,
            task_id=spec.prompt_id,
            prompt_id=spec.prompt_id,
            episode_id=spec.id,
        )
    )
    enter_episode(LiveEpisode(spec.id, spec.prompt_id, task=asyncio.current_task()))
    tape = spec.tape(data)
    set_inputs(TapedInputs(tape, spec.random_seed) if inputs is None else inputs)
    recorder = EpisodeEngine(engine, spec.id, spec.call_seed, tape)
    clock = start_clock(timeout_seconds)
    try:
        async with clock.limit:
            result = await workflow.arun_episode(recorder, copy.deepcopy(dict(data)))
        if isinstance(result, Score) and spec.is_eval:
            ending = _Ending("truncated" if result.truncated else "ok", score=result)
        else:
            # One more than is served everywhere: a server may have taken the next version already.
            newest = recorder.version + 1
            ending = _ending(result, newest, vocab_size, trained=not spec.is_eval)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        if _is_ours():
            raise
        ending = _failed(error, "workflow_error", "workflow")
    except BaseException as error:
        # The episode boundary: whatever a workflow raises becomes data.
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
            raise
        ending = _ending_of(error, clock.limit.expired(), timeout_seconds)
    recorder.close()
    tape.rows = ending.rows
    return _record(spec, recorder, ending, clock.seconds, tape)


def _is_ours() -> bool:
    """Tell a cancellation of this task from a stray CancelledError that a workflow let out."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _ending(
    result: object, newest_version: int, vocab_size: int | None, *, trained: bool
) -> _Ending:
    rows = as_trajectories(result)
    if rows is None:
        return _Ending("rejected")
    rows = check_rows(rows, newest_version=newest_version, vocab_size=vocab_size, trained=trained)
    outcome: Outcome = "truncated" if any(row.truncated for row in rows) else "ok"
    ending = _Ending(outcome, rows)
    if isinstance(result, Mapping):
        values = list(result.values())
        if isinstance(values[0], Interaction):
            ending.interactions = values
    return ending


def _ending_of(error: BaseException, expired: bool, timeout_seconds: float) -> _Ending:
    cause = first_error(error)
    if isinstance(cause, TimeoutError) and expired:
        message = f"the episode took longer than {timeout_seconds:g} s (rollout.limits.seconds)"
        failure = replace(describe(error, "timeout"), type="TimeoutError", message=message)
        return _Ending("timeout", failure=failure)
    if isinstance(cause, SessionTimeout):
        return _failed(error, "timeout", "timeout")
    if isinstance(cause, InferenceError):
        return _failed(error, "inference_error", "inference")
    if isinstance(cause, RewardError):
        return _failed(error, "reward_error", "reward")
    if isinstance(cause, TrajectoryError):
        return _failed(error, "workflow_error", "trajectory")
    return _failed(error, "workflow_error", "workflow")


def _failed(error: BaseException, outcome: Outcome, place: str) -> _Ending:
    return _Ending(outcome, failure=describe(error, place))


def describe(error: BaseException, place: str) -> Failure:
    """Turn an exception into data, named after its first leaf when it is a group.

    One whose text cannot be had is named all the same.
    """
    cause = first_error(error)
    try:
        message = str(cause)
    except Exception as inner:  # noqa: BLE001 - str() of a user's exception may do anything
        message = f"<its text could not be had: {type(inner).__name__}>"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - see above
        trace = "".join(traceback.format_tb(error.__traceback__))
    return Failure(
        place=place,
        type=type(cause).__name__,
        message=message[:_MAX_MESSAGE_CHARS],
        traceback=trace[-_MAX_TRACEBACK_CHARS:],
    )


def _record(
    spec: EpisodeSpec, recorder: EpisodeEngine, ending: _Ending, seconds: float, tape: Tape
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
    )
    return EpisodeRun(episode, rows, len(versions))


def _mean_metrics(rows: Sequence[Trajectory]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(v) / len(v) for name, v in values.items()}
