"""Rewards that the episodes of one prompt earn against each other, once all have ended."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal_agent.aio import is_cancelled
from areal_agent.errors import RewardError, RewardTimeoutError
from areal_agent.rewarding import as_reward
from areal_agent.rollout.outcomes import describe, interrupts
from areal_agent.rollout.stoppable import Stoppable
from areal_agent.types import TRAINABLE_OUTCOMES, Episode

if TYPE_CHECKING:
    from areal_agent.rollout.episode import EpisodeRun
    from areal_agent.trajectory import Trajectory

GroupReward = Callable[[dict[str, Any], Sequence[Episode]], Awaitable[Sequence[float]]]
"""Gets the dataset row and the episodes that may be trained on, each with its own reward, and
returns what each has earned, in the same order."""


async def judge_group(
    judge: GroupReward,
    data: Mapping[str, Any],
    runs: Sequence["EpisodeRun"],
    *,
    seconds: float,
    grace_seconds: float,
) -> list["EpisodeRun"]:
    """Put what `judge` says in place of the rewards of those that may be trained on.

    Where it fails, or takes longer than `seconds`, they all end as ``reward_error``. Code that
    goes on after it was cancelled is left behind after `grace_seconds`.
    """
    members = [i for i, run in enumerate(runs) if run.episode.outcome in TRAINABLE_OUTCOMES]
    judged = list(runs)
    if not members:
        return judged
    limit = asyncio.timeout(seconds)
    code = Stoppable(
        _given(judge, data, [runs[i].episode for i in members]),
        grace_seconds=grace_seconds,
        nested=[],
    )
    rewards: list[float] = []
    failed: BaseException | None = None
    try:
        async with limit:
            given = await code
        rewards = [as_reward(value) for value in given]
        if len(rewards) != len(members):
            raise RewardError(
                f"expected one reward for each of {len(members)} episodes, got {len(rewards)}"
            )
    except BaseException as error:
        # Whatever a user's judge raises becomes data.
        if interrupts(error) or is_cancelled():
            raise
        failed = error
    if limit.expired():  # whatever it returned in place of that
        failed = RewardTimeoutError(f"it took longer than {seconds:g} s (rollout.limits.seconds)")
    if failed is not None:
        return [_failed(run, failed) if i in members else run for i, run in enumerate(runs)]
    for i, reward in zip(members, rewards, strict=True):
        judged[i] = _earned(runs[i], reward)
    return judged


async def _given(
    judge: GroupReward, data: Mapping[str, Any], episodes: Sequence[Episode]
) -> Sequence[float]:
    return await judge(copy.deepcopy(dict(data)), episodes)


def _earned(run: "EpisodeRun", reward: float) -> "EpisodeRun":
    rows = [replace(row, reward=reward) for row in run.rows]
    _note_judged(run, rows)
    return replace(run, episode=replace(run.episode, reward=reward), rows=rows)


def _note_judged(run: "EpisodeRun", rows: "Sequence[Trajectory]") -> None:
    """Keep on the tape what a replay of the episode alone comes to."""
    tape = run.episode.tape
    if tape is not None:
        tape.own = {"outcome": run.episode.outcome, "rewards": [row.reward for row in run.rows]}
        tape.rows = rows


def _failed(run: "EpisodeRun", error: BaseException) -> "EpisodeRun":
    failure = describe(error, "reward")
    failure = replace(failure, message=f"the group's reward failed: {failure.message}")
    episode = replace(run.episode, outcome="reward_error", reward=None, failure=failure)
    _note_judged(run, ())
    return replace(run, episode=episode, rows=())
