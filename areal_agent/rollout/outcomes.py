"""How an episode ends: what its workflow returned or raised, as exactly one outcome."""

import asyncio
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from areal_agent.aio import first_error
from areal_agent.config.rollout_limits import LimitName
from areal_agent.errors import InferenceError, RewardError, SessionTimeout, TrajectoryError
from areal_agent.rollout.checks import check_rows
from areal_agent.rollout.limits import EpisodeLimits
from areal_agent.rollout.results import as_trajectories
from areal_agent.trajectory import Trajectory
from areal_agent.types import Failure, Interaction, Outcome, Score

_MAX_TRACEBACK_CHARS = 8_000
_MAX_MESSAGE_CHARS = 2_000


@dataclass(slots=True)
class Ending:
    """How an episode ended, and what it gave."""

    outcome: Outcome
    rows: Sequence[Trajectory] = field(default_factory=list[Trajectory])
    interactions: Sequence[Interaction] | None = None
    """What the workflow says that its calls were; None: what the engine saw."""
    failure: Failure | None = None
    score: Score | None = None
    """Stands in for rows, in evaluation."""
    limit: LimitName | None = None
    """The limit that it hit."""


@dataclass(slots=True)
class Judge:
    """What rows are checked against."""

    newest_version: int
    """No token can have a newer one."""
    vocab_size: int | None
    trained: bool
    """False in evaluation."""

    def of_result(self, result: object) -> Ending:
        """Judge what a workflow returned.

        Raises:
            TrajectoryError: it cannot be trained on.
        """
        if isinstance(result, Score) and not self.trained:
            return Ending("truncated" if result.truncated else "ok", score=result)
        rows = as_trajectories(result)
        if rows is None:
            return Ending("rejected")
        rows = self._checked(rows)
        ending = Ending("truncated" if any(row.truncated for row in rows) else "ok", rows)
        if isinstance(result, Mapping):
            values = list(result.values())
            if isinstance(values[0], Interaction):
                ending.interactions = values
        return ending

    def of_limit(
        self,
        limits: EpisodeLimits,
        interactions: Sequence[Interaction],
        error: BaseException | None,
    ) -> Ending:
        """Judge an episode that hit a limit, as the settings say.

        Raises:
            Exception: what there is cannot be kept.
        """
        assert limits.hit is not None
        policy, rows = limits.policy, None
        if policy != "reject":
            capture = limits.capture
            rows = _rows_of(interactions, policy) if capture is None else capture(policy)
        if rows:
            kept = [replace(row, truncated=True) for row in self._checked(rows)]
            return Ending("truncated", kept, limit=limits.hit)
        if limits.hit != "seconds":
            return Ending("rejected", limit=limits.hit)
        message = (
            f"the episode took longer than {limits.config.seconds:g} s (rollout.limits.seconds)"
        )
        late = TimeoutError(message) if error is None else error
        failure = replace(describe(late, "timeout"), type="TimeoutError", message=message)
        return Ending("timeout", failure=failure, limit=limits.hit)

    def _checked(self, rows: Sequence[Trajectory]) -> list[Trajectory]:
        return check_rows(
            rows,
            newest_version=self.newest_version,
            vocab_size=self.vocab_size,
            trained=self.trained,
        )


def _rows_of(interactions: Sequence[Interaction], reward: float) -> Sequence[Trajectory] | None:
    return as_trajectories({call.id: replace(call, reward=reward) for call in interactions})


def of_error(error: BaseException) -> Ending:
    """Judge what a workflow raised."""
    cause = first_error(error)
    if isinstance(cause, SessionTimeout):
        return failed(error, "timeout", "timeout")
    if isinstance(cause, InferenceError):
        return failed(error, "inference_error", "inference")
    if isinstance(cause, RewardError):
        return failed(error, "reward_error", "reward")
    if isinstance(cause, TrajectoryError):
        return failed(error, "workflow_error", "trajectory")
    return failed(error, "workflow_error", "workflow")


def of_cancellation(error: BaseException | None, why: str) -> Ending:
    """Judge an episode that was cancelled."""
    gone = asyncio.CancelledError() if error is None else error
    return Ending("cancelled", failure=replace(describe(gone, "cancelled"), message=why))


def failed(error: BaseException, outcome: Outcome, place: str) -> Ending:
    """An ending with a failure."""
    return Ending(outcome, failure=describe(error, place))


def interrupts(error: BaseException) -> bool:
    """Tell whether it is, or holds, a KeyboardInterrupt: the user's, and not the episode's."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(interrupts, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


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
