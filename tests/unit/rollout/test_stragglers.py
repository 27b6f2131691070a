"""Staleness is bounded where it counts, at consumption, also with a long tail of slow tools."""

import asyncio
from collections import Counter

from rollout_support import executor

from areal_agent.data.seeds import derive_seed
from areal_agent.rollout import context
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trajectory import Trajectory
from areal_agent.types import ModelRequest

ETA, BATCH, GROUP, STEPS = 2, 4, 2, 200
USUAL_SECONDS = 0.0005
SLOW_SHARE, SLOWER = 0.02, 50


class UsesATool(RolloutWorkflow):
    """Two model calls around a tool, which one time in fifty takes fifty times as long."""

    def __init__(self):
        self.slow = 0
        self.calls = 0

    async def arun_episode(self, engine, data):
        first = await engine.agenerate(ModelRequest([1, 2]))
        die = derive_seed("tool", context.get().episode_id or "") % 10_000 / 10_000
        self.calls += 1
        self.slow += die < SLOW_SHARE
        await asyncio.sleep(USUAL_SECONDS * (SLOWER if die < SLOW_SHARE else 1))
        asked = [*first.input_tokens, *first.output_tokens, 3]
        second = await engine.agenerate(ModelRequest(asked))
        return Trajectory.from_turns([first, second], 1.0)


def prompts():
    index = 0
    while True:
        yield f"0:{index}", 0, index, {"index": index}
        index += 1


async def test_no_row_is_older_than_the_bound_in_200_steps_with_stragglers():
    engine, workflow = FakeEngine(), UsesATool()
    ages: Counter[int] = Counter()
    oldest_tokens = 0
    async with (
        asyncio.timeout(60),
        executor(
            workflow,
            prompts(),
            engine=engine,
            group_size=GROUP,
            consumer_batch_size=BATCH,
            max_head_offpolicyness=ETA,
        ) as rollouts,
    ):
        for _ in range(STEPS):
            batch = await rollouts.next_batch()
            ages.update(batch.ages)
            rows = [row for group in batch.groups for rows in group.episodes for row in rows]
            oldest_tokens = max(
                oldest_tokens,
                *(batch.version - min(v for v in row.versions if v >= 0) for row in rows),
            )
            rollouts.on_version(engine.bump())
            engine.requests.clear()
        stats = rollouts.stats()
    assert oldest_tokens == max(ages) <= ETA
    assert sum(ages.values()) == stats.consumed == STEPS * BATCH
    assert workflow.slow > 0.01 * workflow.calls
    assert stats.swept > 0, "no straggler was late: the test shows nothing"
    swept_share = stats.swept / (stats.swept + stats.consumed)
    assert swept_share < 0.5
    print(f"ages {dict(sorted(ages.items()))}, swept {swept_share:.1%}")
