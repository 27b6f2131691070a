"""Any order of what may happen to a run keeps its promises: nothing is lost, nothing counts twice.

Episodes end well, fail, are rejected, are cancelled and are run again; versions change, batches are
taken or not, rollouts pause, groups get too old, and the run may be left at any time.
"""

import asyncio
from collections import Counter

from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rollout_support import prompts, settings

from areal_agent.config.rollout_limits import GroupConfig
from areal_agent.errors import RewardError, RolloutError
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.filters import GroupFilter
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.live import current_episode
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trajectory import Trajectory
from areal_agent.types import INFRASTRUCTURE_OUTCOMES, TRAINABLE_OUTCOMES, ModelRequest

GROUP = 2


class Steered(RolloutWorkflow):
    """Samples at once, then waits to be told how to end."""

    def __init__(self):
        self.waiting = {}
        """Number of the episode to its facts and the future that ends it."""
        self.ids = []
        """Of all that were started."""

    async def arun_episode(self, engine, data):
        live = current_episode()
        number = len(self.ids)
        self.ids.append(live.id)
        response = await engine.agenerate(ModelRequest(input_ids=[1, 2]))
        future = asyncio.get_running_loop().create_future()
        self.waiting[number] = live, future
        try:
            reward = await future
        finally:
            del self.waiting[number]
        return None if reward is None else Trajectory.from_response(response, reward)


class ExecutorMachine(RuleBasedStateMachine):
    """Drives an executor one step at a time on a loop of its own."""

    @initialize(
        batch=st.integers(1, 3),
        eta=st.integers(0, 3),
        concurrent=st.integers(2, 12),
        n_prompts=st.integers(0, 25),
        policy=st.builds(
            GroupConfig,
            retries=st.integers(0, 2),
            min_size=st.integers(1, 2),
            fail_fast=st.booleans(),
        ),
        refused=st.sampled_from([0, 0, 3]),
        dynamic=st.booleans(),
    )
    def start(self, batch, eta, concurrent, n_prompts, policy, refused, dynamic):
        self.batch, self.eta, self.concurrent = batch, eta, concurrent
        self.n_prompts, self.policy = n_prompts, policy
        self.engine = FakeEngine()
        self.workflow = Steered()
        self.ended = []
        self.fates = []
        self.taken = []
        self.is_over = False
        self.loop = asyncio.new_event_loop()
        seen = iter(range(10_000))
        self.executor = RolloutExecutor(
            self.engine,
            GroupedRolloutWorkflow(self.workflow, GROUP, policy=policy),
            prompts(n_prompts),
            config=settings(
                consumer_batch_size=batch,
                max_head_offpolicyness=eta,
                max_concurrent_rollouts=concurrent,
                max_consecutive_failures=10_000,
                max_empty_rounds=10_000,
            ),
            seed=1,
            accepts=GroupFilter(
                (lambda group: next(seen) % refused) if refused else None, dynamic_sampling=dynamic
            ),
            on_episode=self.ended.append,
            on_fate=self.fates.append,
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
                self.check_batch(taken)

    def check_batch(self, batch):
        assert batch.version == self.engine.version
        for group, age in zip(batch.groups, batch.ages, strict=True):
            assert 0 <= age == self.engine.version - group.oldest_version <= self.eta
            assert self.policy.min_size <= len(group.episodes) <= GROUP
        used = Counter(episode.prompt_id for episode in batch.episodes)
        assert max(used.values()) <= GROUP

    @precondition(lambda self: self.workflow.waiting)
    @rule(
        data=st.data(),
        how=st.sampled_from(["good", "good", "bad", "reward", "broken", "none", "stray", "stop"]),
    )
    def finish_one(self, data, how):
        number = data.draw(st.sampled_from(sorted(self.workflow.waiting)))
        live, future = self.workflow.waiting[number]
        if how == "stop":
            live.stop("the test wants it")
        elif how == "stray":
            future.cancel()
        elif how in ("reward", "broken"):
            error = {"reward": RewardError, "broken": ValueError}[how]
            future.set_exception(error("no luck"))
        else:
            future.set_result({"good": 1.0, "bad": 0.0, "none": None}[how])
        self.settle()

    @precondition(lambda self: self.workflow.waiting)
    @rule()
    def finish_all(self):
        for number, (_, future) in list(self.workflow.waiting.items()):
            future.set_result(float(number % 2))
        self.settle()

    @precondition(lambda self: not self.is_over)
    @rule()
    def publish(self):
        """A trainer that is faster than one version a batch: the sweep must hold all the same."""
        self.executor.on_version(self.engine.bump())
        self.settle()

    @precondition(lambda self: self.consumer is None and not self.is_over)
    @rule()
    def consume(self):
        self.consumer = self.loop.create_task(self.executor.next_batch())
        self.settle()

    @precondition(lambda self: self.consumer is not None)
    @rule()
    def consume_no_more(self):
        self.consumer.cancel()
        self.consumer = None
        self.settle()

    @precondition(lambda self: not self.is_over)
    @rule()
    def pause_and_resume(self):
        self.executor.pause()
        before = {name.partition("~")[0] for name in self.workflow.ids}
        self.settle()
        assert {name.partition("~")[0] for name in self.workflow.ids} == before
        self.executor.resume()
        self.settle()

    @precondition(lambda self: len(self.workflow.ids) > 12 and not self.is_over)
    @rule()
    def leave(self):
        """The run ends in the midst of everything."""
        self.shut_down()

    @precondition(lambda self: self.is_over)
    @rule()
    def rest(self):
        """Nothing happens any more."""

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
        assert stats.accepted == stats.consumed + stats.buffered or self.is_over
        assert stats.episodes == len(self.ended)
        told = Counter(told.fate for told in self.fates for _ in told.episodes)
        failed = sum(episode.outcome not in TRAINABLE_OUTCOMES for episode in self.ended)
        assert sum(stats.outcomes.values()) == failed + told.total() <= stats.episodes
        assert stats.outcomes.get("stale", 0) == told["swept"]
        assert sum(stats.dropped_why.values()) == stats.dropped
        assert len(self.workflow.ids) == stats.episodes + stats.running_episodes

    @invariant()
    def each_prompt_is_consumed_once_at_most(self):
        seen = [g.prompt_id for batch in self.taken if batch for g in batch.groups]
        assert len(seen) == len(set(seen))

    @invariant()
    def each_episode_ends_once_at_most(self):
        ids = [episode.id for episode in self.ended]
        assert len(ids) == len(set(ids))
        for episode in self.ended:
            failed = episode.outcome not in (*TRAINABLE_OUTCOMES, "rejected")
            assert failed == (episode.failure is not None)

    @invariant()
    def those_that_ended_well_have_one_fate_at_most(self):
        fates = [name for told in self.fates for name in told.episodes]
        assert len(fates) == len(set(fates))
        well = {e.id for e in self.ended if e.outcome in TRAINABLE_OUTCOMES}
        assert well >= set(fates)
        used = {e.id for batch in self.taken if batch for e in batch.episodes} & well
        trained = {n for told in self.fates if told.fate == "trained" for n in told.episodes}
        assert used == trained

    def shut_down(self):
        self.is_over = True
        self.close.set()
        if self.consumer is not None:
            self.consumer.cancel()
            self.consumer = None
        self.loop.run_until_complete(self.runner)
        assert sorted(e.id for e in self.ended) == sorted(self.workflow.ids)
        stats = self.executor.stats()
        assert sum(stats.outcomes.values()) == stats.episodes
        assert stats.running == stats.running_episodes == stats.buffered == 0

    def teardown(self):
        try:
            if not self.is_over:
                self.run_to_the_end()
        finally:
            if not self.is_over:
                self.shut_down()
            self.loop.run_until_complete(asyncio.sleep(0))
            left = asyncio.all_tasks(self.loop)
            self.loop.close()
        assert not left
        self.check_retries()

    def check_retries(self):
        """A try follows another only where that one failed for no fault of the policy."""
        outcomes = {episode.id: episode.outcome for episode in self.ended}
        for name in outcomes:
            first, _, number = name.partition("~")
            if number:
                before = first if number == "1" else f"{first}~{int(number) - 1}"
                assert int(number) <= self.policy.retries
                assert outcomes[before] in INFRASTRUCTURE_OUTCOMES

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


ExecutorMachine.TestCase.settings = hypothesis_settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
TestExecutor = ExecutorMachine.TestCase
