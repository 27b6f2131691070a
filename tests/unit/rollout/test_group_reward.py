"""A reward over the members of a group: it replaces theirs, or they all end as reward_error."""

import asyncio
import math
from contextlib import suppress

import pytest
from rollout_support import OneCall, executor, prompts

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.adapters import AgentWorkflow, FunctionAgent
from areal_agent.rollout.clock import uncounted
from areal_agent.rollout.episode import EpisodeSpec
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.testing.fakes import FakeEngine
from areal_agent.types import GenerationHyperparameters

SPEC = EpisodeSpec(id="0:0", prompt_id="0:0", seed=1, epoch=0, index=0)
ROW = {"reward": 0.25, "facts": ["a"]}


class Judged(OneCall):
    """Episodes whose group is judged by a function of the test."""

    def __init__(self, judge, *, failing=()):
        self.group_reward = judge
        self.left = list(failing)

    async def arun_episode(self, engine, data):
        if self.left and self.left.pop(0):
            raise ValueError("broken")
        return await super().arun_episode(engine, data)


async def test_survivors_are_ranked_among_themselves_before_anybody_hears_of_them():
    seen, told = [], []

    async def by_place(data, episodes):
        seen.append((data, [episode.reward for episode in episodes], len(told)))
        data["facts"].clear()
        return range(len(episodes))

    grouped = GroupedRolloutWorkflow(Judged(by_place, failing=[0, 1, 0]), 3)
    run = await grouped.run(FakeEngine(), ROW, SPEC, on_end=told.append)
    assert seen == [({"reward": 0.25, "facts": []}, [0.25, 0.25], 1)]
    assert ROW["facts"] == ["a"]
    assert [(r.episode.outcome, r.episode.reward) for r in told] == [
        ("workflow_error", None),
        ("ok", 0.0),
        ("ok", 1.0),
    ]
    assert [row.reward for rows in run.group.episodes for row in rows] == [0.0, 1.0]


async def raises(_, __):
    raise ConnectionError("the judge is away")


async def never(_, __):
    await asyncio.Event().wait()


async def too_few(_, __):
    return [1.0]


async def nan(_, episodes):
    return [math.nan for _ in episodes]


async def says_zero_at_the_end(_, episodes):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return [0.0 for _ in episodes]


async def goes_on(_, __):
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def leaves(_, __):
    raise SystemExit(0)


async def gives_up(_, __):
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (raises, "the group's reward failed: the judge is away"),
        (never, "took longer than 0.05 s (rollout.limits.seconds)"),
        (says_zero_at_the_end, "took longer than 0.05 s (rollout.limits.seconds)"),
        (goes_on, "took longer than 0.05 s (rollout.limits.seconds)"),
        (leaves, "SystemExit: the group's reward failed: 0"),
        (gives_up, "CancelledError"),
        (too_few, "each of 2 episodes, got 1"),
        (nan, "finite number as reward, got nan"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_judge_that_fails_is_a_reward_error_of_all(judge, message):
    """Never a 0, and no hang, whatever it makes of its cancellation."""
    limits = LimitsConfig(seconds=0.05, grace_seconds=0.05)
    grouped = GroupedRolloutWorkflow(Judged(judge), 2, limits=limits)
    async with asyncio.timeout(10):
        run = await grouped.run(FakeEngine(), ROW, SPEC)
    assert run.group is None
    for one in run.runs:
        assert (one.episode.outcome, one.episode.reward, one.rows) == ("reward_error", None, ())
        failure = one.episode.failure
        assert failure.place == "reward"
        assert message in f"{failure.type}: {failure.message}"


def test_an_agent_may_bring_one():
    class Brings:
        group_reward = staticmethod(too_few)

        async def run(self, data):
            return 0.0

    workflow = AgentWorkflow(Brings(), None, GenerationHyperparameters())
    assert workflow.group_reward is too_few
    assert AgentWorkflow(FunctionAgent(Brings().run), None, None).group_reward is None


async def test_the_executor_trains_on_what_the_judge_says():
    heard = []

    async def better(data, episodes):
        return [float(i) for i, _ in enumerate(episodes)]

    async with executor(
        Judged(better), prompts(2), consumer_batch_size=2, on_episode=heard.append
    ) as running:
        batch = await running.next_batch()
    rewards = [[row.reward for rows in group.episodes for row in rows] for group in batch.groups]
    assert rewards == [[0.0, 1.0], [0.0, 1.0]]
    assert [episode.reward for episode in heard] == [0.0, 1.0, 0.0, 1.0]


async def test_a_group_of_one_may_wait_for_a_worker():
    """The episode, whose time that wait is none of, has ended by then."""

    async def waits(_, episodes):
        with uncounted():
            return [0.75 for _ in episodes]

    run = await GroupedRolloutWorkflow(Judged(waits), 1).run(FakeEngine(), ROW, SPEC)
    assert run.runs[0].episode.reward == 0.75
