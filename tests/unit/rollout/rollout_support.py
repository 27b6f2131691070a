"""Small workflows and samplers for the tests of the executor."""

import asyncio
from contextlib import asynccontextmanager

from areal_agent.config.inference import RolloutConfig
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.filters import GroupFilter
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trajectory import Trajectory
from areal_agent.types import ModelRequest


class OneCall(RolloutWorkflow):
    """One model call; the reward is the row's."""

    async def arun_episode(self, engine, data):
        response = await engine.agenerate(ModelRequest(input_ids=data.get("prompt", [1, 2])))
        return Trajectory.from_response(response, data.get("reward", 1.0))


class Calls(RolloutWorkflow):
    """Whatever the test hands in."""

    def __init__(self, function):
        self.function = function

    async def arun_episode(self, engine, data):
        return await self.function(engine, data)


def prompts(n, *, epochs=1, **row):
    """Yield prompts as a sampler does."""
    for epoch in range(epochs):
        for index in range(n):
            yield f"{epoch}:{index}", epoch, index, {"index": index, **row}


def settings(**changes):
    values = {
        "max_concurrent_rollouts": 64,
        "consumer_batch_size": 4,
        "max_head_offpolicyness": 0,
        "limits": LimitsConfig(seconds=30.0),
        **changes,
    }
    return RolloutConfig(**values)


@asynccontextmanager
async def executor(workflow=None, sampler=None, *, engine=None, group_size=2, seed=1, **kwargs):
    hooks = {key: kwargs.pop(key) for key in ("on_episode", "on_fate") if key in kwargs}
    should_accept = kwargs.pop("should_accept", None)
    config = settings(**kwargs)
    async with RolloutExecutor(
        engine or FakeEngine(),
        GroupedRolloutWorkflow(
            workflow or OneCall(),
            group_size,
            limits=config.limits,
            policy=config.group,
        ),
        prompts(1000) if sampler is None else sampler,
        config=config,
        seed=seed,
        accepts=GroupFilter(should_accept, dynamic_sampling=config.dynamic_sampling),
        **hooks,
    ) as running:
        yield running


async def settle(turns=50):
    """Let everything that can run do so."""
    for _ in range(turns):
        await asyncio.sleep(0)
