"""Online sessions in the executor: the gate, the bound on staleness and groups hold for them."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from gateway_support import until
from online_support import Elsewhere, elsewhere

from areal_agent.config.inference import RolloutConfig
from areal_agent.config.rollout_limits import GroupConfig
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.grouped import GroupedRolloutWorkflow


def rows() -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    for index in range(100):
        yield f"0:{index}", 0, index, {"index": index}


@asynccontextmanager
async def training(
    there: Elsewhere, *, retries: int = 1, **config: Any
) -> AsyncGenerator[RolloutExecutor]:
    """Synchronous training on batches of one group of two."""
    async with RolloutExecutor(
        there.playing.engine,
        GroupedRolloutWorkflow(there.workflow, 2, policy=GroupConfig(retries=retries)),
        rows(),
        config=RolloutConfig(consumer_batch_size=1, max_head_offpolicyness=0, **config),
        seed=1,
    ) as executor:
        yield executor


async def play(there: Elsewhere, session: dict[str, Any]) -> None:
    assert (await there.ask(session)).status_code == 200
    key = session["api_key"]
    assert (await there.post("/rl/set_reward", {"reward": 1}, key)).status_code == 200
    assert (await there.post("/rl/end_session", {}, key)).json()["error"] is None


async def test_sessions_are_offered_as_the_gate_admits_them() -> None:
    async with elsewhere() as there, training(there) as executor:
        first = await there.start()
        assert "1 sessions on offer" in executor.stats().waiting_for
        second = await there.start()
        assert first["group_id"] == second["group_id"] == "0:0"
        assert (await there.post("/rl/start_session")).status_code == 429
        for session in (first, second):
            await play(there, session)
        batch = await executor.next_batch()
        assert batch is not None
        assert [len(episode) for episode in batch.groups[0].episodes] == [1, 1]
        # The batch is consumed, but its weights are not there yet.
        assert (await there.post("/rl/start_session")).status_code == 429
        executor.on_version(there.playing.engine.bump())
        assert (await there.start())["data"] == {"index": 1}


async def test_a_group_that_came_too_late_is_offered_again() -> None:
    async with elsewhere() as there, training(there) as executor:
        first, second = await there.start(), await there.start()
        await play(there, first)
        executor.on_version(there.playing.engine.bump())  # while the second one goes on
        await play(there, second)
        await until(lambda: executor.stats().swept == 1)
        sessions = [await there.start() for _ in range(4)]
        again = [s for s in sessions if s["group_id"] == "0:0"]
        assert {s["session_id"] for s in again} == {"0:0:1:0", "0:0:1:1"}
        assert all(s["data"] == {"index": 0} for s in again)


async def test_a_silent_agent_costs_its_session_and_not_the_group() -> None:
    # Of two members one is not enough to compare: the group is dropped, and training goes on.
    async with elsewhere(session_idle_seconds=0.8) as there, training(there, retries=0) as executor:
        await there.start()
        await play(there, await there.start())
        await until(lambda: executor.stats().dropped == 1)
        assert executor.stats().outcomes == {"ok": 1, "timeout": 1}
        for session in [await there.start(), await there.start()]:
            assert session["group_id"] == "0:1"
            await play(there, session)
        async with asyncio.timeout(20):
            assert await executor.next_batch() is not None
