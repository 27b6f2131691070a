"""Any interleaving of finishing, failing, publishing, consuming and pausing keeps the promises."""

import asyncio

from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rollout_support import prompts, settings

from areal_agent.errors import RewardError, RolloutError
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trajectory import Trajectory
from areal_agent.types import ModelRequest

GROUP = 2


class Steered(RolloutWorkflow):
    """Samples at once, then waits to be told how to end."""

    def __init__(self):
        self.waiting = {}
        """Episode number to the future that ends it."""
        self.started = 0

    async def arun_episode(self, engine, data):
        number, self.started = self.started, self.started + 1
        response = await engine.agenerate(ModelRequest(input_ids=[1, 2]))
        self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self.waiting[number]
        finally:
            del self.waiting[number]
        return Trajectory.from_response(response, 1.0)


class ExecutorMachine(RuleBasedStateMachine):
    """Drives an executor one step at a time on a loop of its own."""

    @initialize(
        batch=st.integers(1, 3),
        eta=st.integers(0, 3),
        concurrent=st.integers(2, 12),
        n_prompts=st.integers(0, 25),
    )
    def start(self, batch, eta, concurrent, n_prompts):
        self.batch, self.eta, self.concurrent = batch, eta, concurrent
        self.n_prompts = n_prompts
        self.engine = FakeEngine()
        self.workflow = Steered()
        self.ended = []
        self.taken = []
        self.loop = asyncio.new_event_loop()
        self.executor = RolloutExecutor(
            self.engine,
            GroupedRolloutWorkflow(self.workflow, GROUP),
            prompts(n_prompts),
            config=settings(
                consumer_batch_size=batch,
                max_head_offpolicyness=eta,
                max_concurrent_rollouts=concurrent,
                max_consecutive_failures=10_000,
                max_empty_rounds=10_000,
            ),
            seed=1,
            on_episode=self.ended.append,
        )
        self.runner = self.loop.create_task(self.hold_open())
        self.consumer = None
        self.settle()

    async def hold_open(self):
        self.close = asyncio.Event()
        async with self.executor:
            await self.close.wait()

    def settle(self):
        async def turns():
            for _ in range(40):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        if self.consumer is not None and self.consumer.done():
            error, done, self.consumer = self.consumer.exception(), self.consumer, None
            if error is not None:
                assert isinstance(error, RolloutError)
                assert not any(self.taken)
                assert self.executor.stats().dropped == self.n_prompts > 0
            taken = None if error is not None else done.result()
            self.taken.append(taken)
            if taken is not None:
                assert taken.version == self.engine.version
                for group, age in zip(taken.groups, taken.ages, strict=True):
                    assert 0 <= age == self.engine.version - group.oldest_version <= self.eta
                    assert len(group.episodes) == GROUP

    @precondition(lambda self: self.workflow.waiting)
    @rule(data=st.data(), how=st.sampled_from(["ok", "ok", "ok", "fail", "none", "cancel"]))
    def finish_one(self, data, how):
        number = data.draw(st.sampled_from(sorted(self.workflow.waiting)))
        future = self.workflow.waiting[number]
        if how == "fail":
            future.set_exception(RewardError("no score"))
        elif how == "cancel":
            future.cancel()
        else:
            future.set_result(None)
        self.settle()

    @precondition(lambda self: self.workflow.waiting)
    @rule()
    def finish_all(self):
        for future in list(self.workflow.waiting.values()):
            future.set_result(None)
        self.settle()

    @rule()
    def publish(self):
        """A trainer that is faster than one version a batch: the sweep must hold all the same."""
        self.executor.on_version(self.engine.bump())
        self.settle()

    @precondition(lambda self: self.consumer is None)
    @rule()
    def consume(self):
        self.consumer = self.loop.create_task(self.executor.next_batch())
        self.settle()

    @rule()
    def pause_and_resume(self):
        self.executor.pause()
        before = self.workflow.started
        self.settle()
        assert self.workflow.started == before
        self.executor.resume()
        self.settle()

    @invariant()
    def counters_hold(self):
        stats = self.executor.stats()
        assert stats.version == self.engine.version
        for count in (stats.running, stats.running_episodes, stats.buffered, stats.consumed):
            assert count >= 0
        assert stats.running_episodes <= self.concurrent
        assert stats.running_episodes == len(self.workflow.waiting)
        assert stats.running_episodes <= stats.running * GROUP
        ahead = (self.eta + self.engine.version + 1) * self.batch
        assert stats.accepted + stats.running <= ahead
        assert stats.accepted == stats.consumed + stats.buffered
        assert sum(stats.outcomes.values()) == stats.episodes == len(self.ended)
        assert self.workflow.started == stats.episodes + stats.running_episodes

    @invariant()
    def each_prompt_is_consumed_once_at_most(self):
        seen = [g.prompt_id for batch in self.taken if batch for g in batch.groups]
        assert len(seen) == len(set(seen))

    def teardown(self):
        try:
            self.run_to_the_end()
        finally:
            self.close.set()
            if self.consumer is not None:
                self.consumer.cancel()
            self.settle_quietly()
            self.loop.run_until_complete(self.runner)
            left = asyncio.all_tasks(self.loop)
            self.loop.close()
        assert not left

    def run_to_the_end(self):
        """Let everything go on: all prompts are used or dropped, and the data ends."""
        for _ in range(4 * self.n_prompts + 20):
            if self.taken and self.taken[-1] is None:
                break
            if self.consumer is None:
                self.consumer = self.loop.create_task(self.executor.next_batch())
            self.finish_all()
            if self.consumer is None or not self.workflow.waiting:
                self.publish()
        assert self.taken
        assert self.taken[-1] is None, self.executor.stats()
        stats = self.executor.stats()
        assert stats.consumed + stats.dropped == self.n_prompts
        ids = [episode.id for episode in self.ended]
        assert len(ids) == len(set(ids))

    def settle_quietly(self):
        self.loop.run_until_complete(asyncio.sleep(0))


ExecutorMachine.TestCase.settings = hypothesis_settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
TestExecutor = ExecutorMachine.TestCase
