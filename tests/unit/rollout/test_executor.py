"""Batches out of episodes: order, ends, budgets, cancellation."""

import asyncio
import gc
import time

import pytest
from rollout_support import Calls, OneCall, executor, prompts, settle

from areal_agent.errors import RewardError, RolloutError
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import ModelRequest


async def drain(running, engine, *, publish=True):
    """Consume until the data ends, publishing after each batch; return prompt ids per batch."""
    batches = []
    while (batch := await running.next_batch()) is not None:
        batches.append([group.prompt_id for group in batch.groups])
        if publish:
            running.on_version(engine.bump())
    return batches


async def test_a_batch_holds_groups_of_all_samples():
    engine = FakeEngine()
    async with asyncio.timeout(10), executor(engine=engine, group_size=3) as running:
        batch = await running.next_batch()
    assert [group.prompt_id for group in batch.groups] == ["0:0", "0:1", "0:2", "0:3"]
    assert all(len(group.episodes) == 3 for group in batch.groups)
    assert len(batch.episodes) == 12
    assert list(batch.ages) == [0, 0, 0, 0]
    [(start, _)] = running.active_spans()
    assert start <= batch.ready_at <= time.time()
    assert {episode.outcome for episode in batch.episodes} == {"ok"}
    row = batch.groups[0].episodes[0][0]
    assert list(row.input_ids) == [1, 2, 7, 8, 9]
    assert list(row.versions) == [-1, -1, 0, 0, 0]


@pytest.mark.parametrize(
    ("n_rows", "epochs", "batch", "eta", "expected"),
    [(3, 2, 8, 0, [6]), (10, 1, 4, 0, [4, 4, 2]), (10, 1, 4, 2, [4, 4, 2]), (8, 1, 4, 0, [4, 4])],
)
async def test_the_end_of_the_data_ends_cleanly(n_rows, epochs, batch, eta, expected):
    """S22: short data gives a short last batch, then None, and never hangs."""
    engine = FakeEngine()
    async with (
        asyncio.timeout(10),
        executor(
            sampler=prompts(n_rows, epochs=epochs),
            engine=engine,
            consumer_batch_size=batch,
            max_head_offpolicyness=eta,
        ) as running,
    ):
        batches = await drain(running, engine)
        assert await running.next_batch() is None
    assert [len(b) for b in batches] == expected
    seen = [prompt for b in batches for prompt in b]
    assert sorted(seen) == sorted(p[0] for p in prompts(n_rows, epochs=epochs))


async def test_no_data_at_all():
    async with asyncio.timeout(10), executor(sampler=iter(())) as running:
        assert await running.next_batch() is None


async def test_slow_prompts_are_trained_as_often_as_quick_ones():
    """S22: oldest first; 20 steps over 16 prompts, every other one of which is slow."""
    engine = FakeEngine()
    counts = dict.fromkeys(range(16), 0)

    async def work(engine, data):
        for _ in range(40 if data["index"] % 2 == 0 else 1):
            await asyncio.sleep(0)
        return await OneCall().arun_episode(engine, data)

    async with (
        asyncio.timeout(30),
        executor(
            Calls(work),
            prompts(16, epochs=100),
            engine=engine,
            max_head_offpolicyness=2,
        ) as running,
    ):
        for _ in range(20):
            batch = await running.next_batch()
            for group in batch.groups:
                counts[int(group.prompt_id.split(":")[1])] += 1
            running.on_version(engine.bump())
    assert sum(counts.values()) == 80
    assert max(counts.values()) - min(counts.values()) <= 2


async def test_groups_too_old_at_consumption_are_swept_and_issued_again():
    engine = FakeEngine()
    gates = {1: asyncio.Event()}

    async def work(engine, data):
        response = await engine.agenerate(ModelRequest(input_ids=[1, 2]))
        if data["index"] == 1 and not gates[1].is_set():
            await gates[1].wait()
        return Trajectory.from_response(response, 1.0)

    async with (
        asyncio.timeout(10),
        executor(
            Calls(work), engine=engine, consumer_batch_size=1, max_head_offpolicyness=1
        ) as running,
    ):
        first = await running.next_batch()
        assert [g.prompt_id for g in first.groups] == ["0:0"]
        running.on_version(engine.bump())
        assert [g.prompt_id for g in (await running.next_batch()).groups] == ["0:2"]
        running.on_version(engine.bump())
        await settle()
        gates[1].set()
        await settle()
        assert running.stats().swept == 1
        await settle()
        batch = await running.next_batch()
        assert [g.prompt_id for g in batch.groups] == ["0:1"]
        assert list(batch.ages) == [0]
        assert {e.id for e in batch.episodes} == {"0:1:1:0", "0:1:1:1"}


async def test_data_that_ends_without_a_usable_group_is_an_error():
    """S17: short data must not end as if all were well."""

    async def broken(engine, data):
        raise ValueError("the tool is missing")

    async with asyncio.timeout(10), executor(Calls(broken), prompts(3)) as running:
        with pytest.raises(RolloutError, match=r"none of its 3 groups.*the tool is missing"):
            await running.next_batch()


async def test_an_executor_runs_once():
    async with executor() as running:
        with pytest.raises(RuntimeError, match="runs once"):
            await running.__aenter__()


async def test_everything_refused_ends_with_a_named_error():
    """S17."""
    async with (
        asyncio.timeout(10),
        executor(should_accept=lambda group: False, max_empty_rounds=2) as running,
    ):
        with pytest.raises(RolloutError, match=r"8 groups in a row .*should_accept refused"):
            await running.next_batch()
        assert running.stats().accepted == 0


async def test_every_episode_rejected_ends_with_a_named_error():
    async def nothing(engine, data):
        return None

    async with asyncio.timeout(10), executor(Calls(nothing), max_empty_rounds=1) as running:
        with pytest.raises(RolloutError, match=r"4 groups in a row .*arun_episode returned None"):
            await running.next_batch()


async def test_one_accepted_in_ten_is_enough():
    """S17: what is accepted is kept, however much is refused around it."""
    seen = iter(range(10_000))
    async with (
        asyncio.timeout(10),
        executor(should_accept=lambda group: next(seen) % 10 == 9, max_empty_rounds=4) as running,
    ):
        batch = await running.next_batch()
        assert [g.prompt_id for g in batch.groups] == ["0:9", "0:19", "0:29", "0:39"]
        assert running.stats().dropped == 36


async def test_a_filter_that_raises_ends_with_its_traceback():
    def broken(group):
        raise KeyError("no such field")

    async with (
        asyncio.timeout(10),
        executor(should_accept=broken, max_empty_rounds=1) as running,
    ):
        with pytest.raises(RolloutError, match=r"(?s)should_accept failed: KeyError.*in broken"):
            await running.next_batch()


async def test_a_workflow_that_always_raises_ends_with_its_traceback():
    async def broken(engine, data):
        raise ValueError("the tool is missing")

    async with (
        asyncio.timeout(10),
        executor(Calls(broken), max_consecutive_failures=5) as running,
    ):
        with pytest.raises(RolloutError) as caught:
            await running.next_batch()
    text = str(caught.value)
    assert "5 episodes in a row failed" in text
    assert "5 times: workflow_error: ValueError: the tool is missing" in text
    assert "in broken" in text


async def test_what_was_finished_before_a_budget_ran_out_is_handed_over():
    async def work(engine, data):
        if data["index"] >= 4:
            raise RewardError("no score")
        return await OneCall().arun_episode(engine, data)

    async with (
        asyncio.timeout(10),
        executor(Calls(work), max_consecutive_failures=3, max_head_offpolicyness=1) as running,
    ):
        await settle()
        assert len((await running.next_batch()).groups) == 4
        with pytest.raises(RolloutError, match="reward_error: RewardError"):
            await running.next_batch()


async def test_survivors_form_the_group_and_single_ones_do_not():
    calls = {}

    async def work(engine, data):
        n = calls[data["index"]] = calls.get(data["index"], 0) + 1
        failing = {0: 1, 1: 2, 2: 3}.get(data["index"], 0)
        if n <= failing:
            raise ValueError("unlucky")
        return await OneCall().arun_episode(engine, data)

    async with asyncio.timeout(10), executor(Calls(work), group_size=3) as running:
        batch = await running.next_batch()
        assert {g.prompt_id: len(g.episodes) for g in batch.groups} == {
            "0:0": 2,
            "0:3": 3,
            "0:4": 3,
            "0:5": 3,
        }
        stats = running.stats()
        assert stats.dropped == 2
        assert stats.outcomes["workflow_error"] == 6


async def test_members_sample_differently_and_runs_repeat():
    """S16: a configured seed still gives each sample a seed of its own."""

    async def work(engine, data):
        request = ModelRequest(input_ids=[1, 2])
        gconfig = request.gconfig.new(seed=1)
        response = await engine.agenerate(ModelRequest(input_ids=[1, 2], gconfig=gconfig))
        return Trajectory.from_response(response, 1.0)

    async def seeds():
        engine = FakeEngine()
        async with (
            asyncio.timeout(10),
            executor(Calls(work), prompts(2, epochs=2), engine=engine, group_size=8) as running,
        ):
            await running.next_batch()
        return sorted(request.gconfig.seed for request in engine.requests)

    first = await seeds()
    assert len(first) == len(set(first)) == 32
    assert await seeds() == first


async def test_data_is_each_episodes_own():
    async def work(engine, data):
        assert data["list"] == []
        data["list"].append(1)
        return await OneCall().arun_episode(engine, data)

    async with asyncio.timeout(10), executor(Calls(work), prompts(4, list=[])) as running:
        assert len((await running.next_batch()).groups) == 4
        assert running.stats().outcomes == {"ok": 8}


async def test_leaving_cancels_everything():
    engine = FakeEngine()
    engine.hold()
    async with asyncio.timeout(10), executor(engine=engine) as running:
        await settle()
        assert engine.running == 8
        assert running.stats().running_episodes == 8
        assert running.stats().waiting_for == "8 episodes of 4 groups; 4 groups to go"
    assert engine.running == 0
    assert engine.cancelled == 8
    assert running.stats().running == 0
    assert running.stats().running_episodes == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_failing_sampler_is_raised_bare():
    def broken():
        yield from prompts(1)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        async with asyncio.timeout(10), executor(sampler=broken()) as running:
            await running.next_batch()


async def test_pause_starts_nothing_and_resume_goes_on():
    engine = FakeEngine()
    async with asyncio.timeout(10), executor(engine=engine) as running:
        running.pause()
        await settle()
        assert engine.requests == []
        assert running.stats().waiting_for == "resume: rollouts are paused"
        running.resume()
        assert len((await running.next_batch()).groups) == 4
        await settle()
        assert running.stats().waiting_for == "weights newer than version 0"


@pytest.mark.parametrize("version", [0, 5, 50])
@pytest.mark.parametrize(("eta", "admitted"), [(0, 4), (2, 12)])
async def test_a_recovered_run_admits_what_a_fresh_one_does(version, eta, admitted):
    """S20: (eta + 1) batches of four groups, whatever runs, has ended or is swept meanwhile."""
    engine = FakeEngine(version=version)
    engine.hold()
    async with executor(engine=engine, max_head_offpolicyness=eta) as running:
        await settle()
        assert running.stats().running == admitted
        engine.release()
        await settle(100)
        stats = running.stats()
        assert (stats.running, stats.buffered) == (0, admitted)
        engine.hold()
        await running.next_batch()
        running.on_version(engine.bump())
        await settle()
        stats = running.stats()
        assert stats.running == 4
        assert stats.buffered + stats.running == admitted


async def test_an_engine_that_dies_ends_the_run():
    engine = FakeEngine()
    async with (
        asyncio.timeout(10),
        executor(engine=engine, max_consecutive_failures=4) as running,
    ):
        engine.hold()
        await settle()
        engine.die("out of memory")
        with pytest.raises(RolloutError, match="inference_error: EngineFault: out of memory"):
            await running.next_batch()


async def test_truncated_replies_are_kept_and_marked():
    engine = FakeEngine(lambda request: Reply(stop_reason="length"))
    async with asyncio.timeout(10), executor(engine=engine) as running:
        batch = await running.next_batch()
        assert running.stats().outcomes["truncated"] == 8
    assert all(rows[0].truncated for group in batch.groups for rows in group.episodes)
    gc.collect()


async def test_a_lowered_limit_holds_groups_back_and_says_so():
    engine = FakeEngine()
    engine.hold()
    async with asyncio.timeout(10), executor(engine=engine, max_concurrent_rollouts=8) as running:
        running.limit(4)
        await settle()
        assert (engine.running, running.stats().limit) == (4, 4)
        assert running.stats().waiting_for == (
            "4 episodes of 2 groups; 4 groups to go; at most 4 episodes while the servers have a "
            "queue"
        )
        running.limit(8)
        await settle()
        assert engine.running == 8
