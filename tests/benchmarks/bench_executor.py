"""CPU cost that the executor adds to a trivial episode, from few to many in flight.

The control is the same workflow awaited in bare tasks, measured in the same run.
"""

import argparse
import asyncio
import json
import time

from areal_agent.config.inference import RolloutConfig
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import ModelRequest

GROUP = 8


class Trivial(RolloutWorkflow):
    """One call of three tokens."""

    async def arun_episode(self, engine, data):
        response = await engine.agenerate(ModelRequest(input_ids=[1, 2]))
        return Trajectory.from_response(response, 1.0)


async def bare(n: int, concurrent: int) -> float:
    """CPU seconds per episode without an executor."""
    engine, workflow = FakeEngine(lambda request: Reply([7])), Trivial()
    left = iter(range(n))

    async def worker() -> None:
        for i in left:
            await workflow.arun_episode(engine, {"i": i})

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrent):
            group.create_task(worker())
    return (time.process_time() - started) / n


async def executed(n: int, concurrent: int) -> float:
    """CPU seconds per episode with an executor that keeps `concurrent` in flight."""
    engine = FakeEngine(lambda request: Reply([7]))
    config = RolloutConfig(
        max_concurrent_rollouts=concurrent,
        consumer_batch_size=max(concurrent // GROUP // 2, 1),
        max_head_offpolicyness=2,
    )
    prompts = ((f"0:{i}", 0, i, {"i": i}) for i in range(n // GROUP))
    started = time.process_time()
    async with RolloutExecutor(
        engine, GroupedRolloutWorkflow(Trivial(), GROUP), prompts, config=config, seed=1
    ) as executor:
        while await executor.next_batch() is not None:
            executor.on_version(engine.bump())
    return (time.process_time() - started) / executor.stats().episodes


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    for concurrent in (16, 128, 1024, 10_000):
        control = asyncio.run(bare(args.n, concurrent))
        figure = asyncio.run(executed(args.n, concurrent))
        added = (figure - control) * 1e3
        results[concurrent] = {"control_ms": control * 1e3, "ms": figure * 1e3, "added_ms": added}
        print(
            f"{concurrent:6} in flight: {figure * 1e3:.3f} ms an episode, "
            f"{added:.3f} ms more than bare tasks"
        )
    if args.json:
        print(json.dumps({"episodes": args.n, "in_flight": results}))


if __name__ == "__main__":
    main()
