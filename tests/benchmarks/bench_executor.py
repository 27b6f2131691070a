"""CPU cost that the executor adds to a trivial episode, from few to many in flight.

The control is the same episodes run bare, under a semaphore, in the same process. Rounds alternate
and the best of each counts: what disturbs a machine only ever adds. With `--memory`, 5 000 episodes
of one executor show whether resident memory grows after the first 500.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psutil

from areal_agent.aio import fast_loop_factory, settle_collector
from areal_agent.config.inference import RolloutConfig
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters, ModelRequest, ModelResponse

GROUP = 8
IN_FLIGHT = (10, 256, 2_000, 10_000)
WARM = 500
EPISODES = 5_000


class Trivial(RolloutWorkflow):
    """One call of one token."""

    def __init__(self):
        self.gconfig = GenerationHyperparameters()

    async def arun_episode(self, engine, data):
        response = await engine.agenerate(ModelRequest([1, 2], self.gconfig))
        return Trajectory.from_response(response, 1.0)


class Stub(FakeEngine):
    """Answers at once, and does nothing else."""

    async def agenerate(self, request, *, on_tokens=None):
        await asyncio.sleep(0)
        return ModelResponse(request.input_ids, [7], [-0.1], [self.version], "stop")


async def bare(n: int, concurrent: int) -> float:
    """CPU seconds per episode in bare tasks under a semaphore."""
    engine, workflow = Stub(), Trivial()
    places = asyncio.Semaphore(concurrent)

    async def one(i: int) -> None:
        async with places:
            await workflow.arun_episode(engine, {"i": i})

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for i in range(n):
            group.create_task(one(i))
    return (time.process_time() - started) / n


def executor_of(engine: FakeEngine, n: int, concurrent: int) -> RolloutExecutor:
    """An executor that runs `n` episodes, `concurrent` at a time."""
    group = min(GROUP, concurrent)
    config = RolloutConfig(
        max_concurrent_rollouts=concurrent,
        consumer_batch_size=max(concurrent // group // 2, 1),
        max_head_offpolicyness=2,
    )
    prompts: Iterator[Any] = ((f"0:{i}", 0, i, {"i": i}) for i in range(n // group))
    return RolloutExecutor(
        engine, GroupedRolloutWorkflow(Trivial(), group), prompts, config=config, seed=1
    )


async def executed(n: int, concurrent: int) -> float:
    """CPU seconds per episode with an executor that keeps `concurrent` in flight."""
    engine = Stub()
    started = time.process_time()
    async with executor_of(engine, n, concurrent) as executor:
        while await executor.next_batch() is not None:
            executor.on_version(engine.bump())
    return (time.process_time() - started) / executor.stats().episodes


async def memory() -> tuple[int, int]:
    """Resident bytes after the first 500 episodes and after 5 000."""
    engine = Stub()
    seen: list[int] = []
    async with executor_of(engine, EPISODES, 64) as executor:
        while await executor.next_batch() is not None:
            executor.on_version(engine.bump())
            if executor.stats().episodes >= (WARM if not seen else EPISODES - 64):
                gc.collect()
                seen.append(psutil.Process().memory_info().rss)
    return seen[0], seen[-1]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run in the kind of event loop that the command line runs in."""
    with asyncio.Runner(loop_factory=fast_loop_factory()) as runner:
        return runner.run(main)


def best(measure: Callable[[], float], repeats: int) -> float:
    """The least of several measurements."""
    return min(measure() for _ in range(repeats))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="episodes a measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--memory", action="store_true", help="resident memory over 5 000 episodes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    settle_collector()  # as the command line does
    told: dict[str, Any] = {"episodes": args.n}
    if args.memory:
        after_warm, at_end = run(memory())
        grown = at_end - after_warm
        told["bytes_grown_per_episode"] = grown / (EPISODES - WARM)
        print(f"{grown / 2**20:.1f} MiB more after {EPISODES} episodes than after {WARM}")
    costs: dict[str, float] = {}
    controls: dict[str, float] = {}
    for concurrent in IN_FLIGHT:
        control = best(lambda c=concurrent: run(bare(args.n, c)), args.repeats) * 1e3
        cost = best(lambda c=concurrent: run(executed(args.n, c)), args.repeats) * 1e3
        costs[str(concurrent)], controls[str(concurrent)] = cost, control
        print(f"{concurrent:6} in flight: {cost:.3f} ms CPU an episode; bare {control:.3f} ms")
    if args.json:
        print(
            json.dumps({**told, "cpu_ms_per_episode": costs, "bare_cpu_ms_per_episode": controls})
        )


if __name__ == "__main__":
    main()
