"""Each episode ends with exactly one outcome, whatever its workflow does."""

import asyncio
from dataclasses import replace

import pytest
from rollout_support import Calls, OneCall

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.errors import EngineFault, InferenceError, RewardError, WeightUpdateError
from areal_agent.net.clients import HttpClients
from areal_agent.rollout import context
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.rollout.evaluate import run_all
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters, Interaction, ModelRequest, Scores

LIMITS = LimitsConfig(seconds=5)
SPEC = EpisodeSpec(id="0:3:1", prompt_id="0:3", seed=1, epoch=0, index=3, sample=1)


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Alarm(BaseException):
    """What a library that is not careful may raise."""


def raising(error):
    async def work(engine, data):
        await engine.agenerate(ModelRequest(input_ids=[1]))
        raise error

    return Calls(work)


async def run(workflow, engine=None, *, timeout=10.0, data=None):
    return await run_episode(
        workflow,
        engine or FakeEngine(version=2),
        data or {},
        SPEC,
        limits=LimitsConfig(seconds=timeout),
    )


@pytest.mark.parametrize(
    ("error", "outcome", "place", "message"),
    [
        (ValueError("bad"), "workflow_error", "workflow", "bad"),
        (RewardError("no score"), "reward_error", "reward", "no score"),
        (EngineFault("broke"), "inference_error", "inference", "broke"),
        (TimeoutError("a tool"), "workflow_error", "workflow", "a tool"),
        (asyncio.CancelledError(), "workflow_error", "workflow", ""),
        (Alarm("ring"), "workflow_error", "workflow", "ring"),
        (Unspeakable(), "workflow_error", "workflow", "<its text could not be had: RuntimeError>"),
        (
            ExceptionGroup("two", [RewardError("first"), ValueError("second")]),
            "reward_error",
            "reward",
            "first",
        ),
    ],
)
async def test_what_a_workflow_raises_becomes_data(error, outcome, place, message):
    ended = await run(raising(error))
    episode = ended.episode
    assert episode.outcome == outcome
    assert (episode.failure.place, episode.failure.message) == (place, message)
    assert "in work" in episode.failure.traceback
    assert episode.reward is None
    assert list(ended.rows) == []
    assert ended.output_tokens == 3
    assert episode.versions == (2, 2)
    assert len(episode.interactions) == 1


async def test_an_interrupt_is_let_through():
    with pytest.raises(BaseExceptionGroup) as caught:
        await run(raising(BaseExceptionGroup("nested", [KeyboardInterrupt()])))
    assert isinstance(caught.value.exceptions[0], KeyboardInterrupt)


async def test_a_workflow_does_not_end_the_process():
    episode = (await run(raising(SystemExit(3)))).episode
    assert episode.outcome == "workflow_error"
    assert episode.failure.type == "SystemExit"


async def test_rows_that_cannot_be_trained_on_are_a_failure_of_the_workflow():
    class BadMetric(OneCall):
        async def arun_episode(self, engine, data):
            row = await super().arun_episode(engine, data)
            return replace(row, metrics={"x": "hello"})

    episode = (await run(BadMetric())).episode
    assert (episode.outcome, episode.failure.place) == ("workflow_error", "trajectory")
    assert "metric 'x'" in episode.failure.message


@pytest.mark.parametrize("is_eval", [False, True])
async def test_greedy_replies_are_not_trained_on(is_eval):
    class Greedy(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            gconfig = GenerationHyperparameters(greedy=True)
            response = await engine.agenerate(ModelRequest([1, 2], gconfig))
            return Trajectory.from_response(response, 1.0)

    spec = replace(SPEC, is_eval=is_eval)
    ended = await run_episode(Greedy(), FakeEngine(), {}, spec, limits=LimitsConfig(seconds=10.0))
    if is_eval:
        assert ended.episode.outcome == "ok"
    else:
        assert (ended.episode.outcome, list(ended.rows)) == ("workflow_error", [])
        assert "greedily" in ended.episode.failure.message


async def test_an_episode_that_takes_too_long():
    engine = FakeEngine()
    engine.hold()
    ended = await run(OneCall(), engine, timeout=0.05)
    assert ended.episode.outcome == "timeout"
    assert "longer than 0.05 s" in ended.episode.failure.message
    assert engine.cancelled == 1


async def test_cancelling_from_outside_is_passed_on():
    engine = FakeEngine()
    engine.hold()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run(OneCall(), engine))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert engine.cancelled == 1


@pytest.mark.parametrize("result", [None, [], {}])
async def test_nothing_is_a_rejection(result):
    """S08."""

    async def work(engine, data):
        return result

    ended = await run(Calls(work))
    assert ended.episode.outcome == "rejected"
    assert ended.episode.failure is None
    assert ended.episode.versions is None


async def test_what_cannot_be_trained_on_is_a_failure_of_the_workflow():
    async def work(engine, data):
        return 17

    ended = await run(Calls(work))
    assert ended.episode.outcome == "workflow_error"
    assert ended.episode.failure.place == "trajectory"
    assert "got int 17" in ended.episode.failure.message


async def test_the_record_of_two_turns():
    engine = FakeEngine(lambda request: Reply([5, 6], stop_reason="length"), version=4)

    async def work(engine, data):
        messages = [{"role": "user", "content": "hi"}]
        first = await engine.agenerate(ModelRequest([1, 2], metadata={"messages": messages}))
        second = await engine.agenerate(ModelRequest([1, 2, 5, 6, 3]))
        return Trajectory.from_turns([first, second], 0.5, metrics={"turns": 2.0})

    ended = await run(Calls(work), engine)
    episode = ended.episode
    assert episode.outcome == "truncated"
    assert (episode.reward, episode.metrics) == (0.5, {"turns": 2.0})
    first, second = episode.interactions
    assert first.messages == [{"role": "user", "content": "hi"}]
    assert (first.parent_id, second.parent_id) == (None, first.id)
    assert ended.output_tokens == 4
    seeds = [request.gconfig.seed for request in engine.requests]
    assert seeds == [SPEC.call_seed(0, None), SPEC.call_seed(1, None)]


async def test_interactions_that_a_workflow_returns_are_the_record():
    async def work(engine, data):
        response = await engine.agenerate(ModelRequest([1, 2]))
        said = {"role": "assistant", "content": "yes"}
        return {"a": Interaction("a", None, [], said, response, reward=1.0)}

    ended = await run(Calls(work))
    assert ended.episode.outcome == "ok"
    assert ended.episode.interactions[0].reply["content"] == "yes"


async def test_an_episode_may_not_touch_the_run():
    async def work(engine, data):
        async with engine:
            assert engine.version == 2
            assert await engine.score([[1, 2]]) == Scores([[0.0, -0.5]], version=2)
        with pytest.raises(InferenceError, match="asked to pause"):
            engine.paused()
        with pytest.raises(WeightUpdateError, match="only the trainer"):
            await engine.update_weights("w", 3)
        data["kept"] = engine
        leaked.append(engine)
        return await OneCall().arun_episode(engine, data)

    leaked = []
    data = {"prompt": [1, 2]}
    ended = await run(Calls(work), data=data)
    assert ended.episode.outcome == "ok"
    assert "kept" not in data
    with pytest.raises(InferenceError, match="has ended"):
        await leaked[0].agenerate(ModelRequest([1]))


def test_seeds_tell_every_call_apart():
    calls = [
        EpisodeSpec("x", "p", seed, epoch, index, sample, is_eval).call_seed(turn, configured)
        for seed in (1, 2)
        for epoch in (0, 1)
        for index in (0, 1)
        for sample in (0, 1)
        for is_eval in (False, True)
        for turn in (0, 1)
        for configured in (None, 7)
    ]
    # With a configured seed the run's own does not count.
    assert len(set(calls)) == len(calls) - 32
    assert all(0 <= seed < 2**63 for seed in calls)


async def test_context_is_each_episodes_own():
    seen = {}

    async def work(engine, data):
        await asyncio.sleep(0)
        facts = context.get()
        seen[facts.episode_id] = (facts.prompt_id, context.stat_scope())
        return await OneCall().arun_episode(engine, data)

    grouped = GroupedRolloutWorkflow(Calls(work), 3)
    await grouped.run(FakeEngine(), {}, EpisodeSpec("0:7", "0:7", 1, 0, 7))
    assert seen == {f"0:7:{i}": ("0:7", "rollout") for i in range(3)}
    assert context.get() == context.WorkflowContext()
    await run_all(FakeEngine(), Calls(work), [{}], max_concurrent=2, limits=LIMITS, seed=1)
    assert seen["eval:0"] == ("eval:0", "eval-rollout")


async def test_the_shared_client_is_lent_by_the_run():
    got = []

    async def work(engine, data):
        got.append(await context.get_httpx_client())

    async with HttpClients() as clients:
        with context.use_clients(clients):
            await run(Calls(work))
        assert got == [clients.external()]


async def test_grouped_keeps_survivors_and_drops_lonely_ones():
    calls = []

    async def work(engine, data):
        calls.append(1)
        if len(calls) % 3 == 1:
            raise ValueError("unlucky")
        return await OneCall().arun_episode(engine, data)

    rows = await GroupedRolloutWorkflow(Calls(work), 3).arun_episode(FakeEngine(), {})
    assert len(rows) == 2
    assert (
        await GroupedRolloutWorkflow(raising(ValueError()), 3).arun_episode(FakeEngine(), {})
        is None
    )
    assert len(await GroupedRolloutWorkflow(OneCall(), 1).arun_episode(FakeEngine(), {})) == 1
    with pytest.raises(ValueError, match="1 or more, got 0"):
        GroupedRolloutWorkflow(OneCall(), 0)


async def test_evaluation_keeps_order_bounds_concurrency_and_repeats():
    engine = FakeEngine()
    most = 0

    async def work(engine, data):
        nonlocal most
        most = max(most, real.running + 1)
        for _ in range(10 - data["index"]):
            await asyncio.sleep(0)
        if data["index"] == 4:
            raise RewardError("no score")
        return await OneCall().arun_episode(engine, {"reward": data["index"]})

    real = engine
    done = []
    rows = [{"index": i} for i in range(9)]
    episodes = await run_all(
        engine,
        Calls(work),
        rows,
        max_concurrent=3,
        limits=LIMITS,
        seed=1,
        progress=lambda n, total: done.append((n, total)),
    )
    assert [e.reward for e in episodes] == [0, 1, 2, 3, None, 5, 6, 7, 8]
    assert episodes[4].outcome == "reward_error"
    assert most <= 3
    assert done == [(n, 9) for n in range(1, 10)]
    seeds = sorted(request.gconfig.seed for request in engine.requests)
    again = FakeEngine()
    real = again
    await run_all(again, Calls(work), rows, max_concurrent=1, limits=LIMITS, seed=1)
    assert sorted(request.gconfig.seed for request in again.requests) == seeds
    assert await run_all(engine, OneCall(), [], max_concurrent=3, limits=LIMITS, seed=1) == []
