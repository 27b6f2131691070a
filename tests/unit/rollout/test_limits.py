"""What an episode may use: each limit rejects it, or keeps what there is."""

import asyncio

import pytest
from rollout_support import Calls, OneCall, executor

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.errors import ConfigError, LimitReached
from areal_agent.rollout import context
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters, ModelRequest

SPEC = EpisodeSpec(id="0:0:0", prompt_id="0:0", seed=1, epoch=0, index=0)


async def run(work, engine=None, **limits):
    return await run_episode(
        Calls(work), engine or FakeEngine(), {}, SPEC, limits=LimitsConfig(**limits)
    )


async def talks(engine, data):
    """Three turns, each of which extends the one before, then a reward of its own."""
    ids, responses = [1, 2], []
    for _ in range(3):
        responses.append(await engine.agenerate(ModelRequest(ids)))
        ids = [*ids, *responses[-1].output_tokens, 3]
    return Trajectory.from_turns(responses, 1.0)


async def shrugs(engine, data):
    """The same, but does not mind that a call is refused."""
    try:
        return await talks(engine, data)
    except LimitReached:
        return Trajectory.from_response(await OneCall().arun_episode(engine, data), 9.0)


async def uses_tools(engine, data):
    response = await engine.agenerate(ModelRequest([1, 2]))
    for n in range(3):
        await context.tool(abs, -n)
    return Trajectory.from_response(response, 1.0)


async def sleeps(engine, data):
    await engine.agenerate(ModelRequest([1, 2]))
    await asyncio.Event().wait()


def test_limits_that_are_not_hit_change_nothing():
    engine, plain = FakeEngine(), FakeEngine()
    ended = asyncio.run(run(talks, engine, turns=3, output_tokens=9, tool_calls=0))
    asyncio.run(run(talks, plain))
    assert (ended.episode.outcome, ended.episode.reward, ended.episode.limit) == ("ok", 1.0, None)
    # The ninth token is the last: a reply that ends by itself was not cut.
    assert [r.gconfig.seed for r in engine.requests] == [r.gconfig.seed for r in plain.requests]


@pytest.mark.parametrize(
    ("work", "limits", "name", "n_turns"),
    [
        (talks, {"turns": 2}, "turns", 2),
        (shrugs, {"turns": 2}, "turns", 2),
        (talks, {"output_tokens": 6}, "output_tokens", 2),
        (talks, {"output_tokens": 7}, "output_tokens", 3),
        (uses_tools, {"tool_calls": 2}, "tool_calls", 1),
    ],
)
async def test_at_a_limit_an_episode_is_rejected_or_kept(work, limits, name, n_turns):
    ended = await run(work, **limits)
    assert (ended.episode.outcome, ended.episode.limit, ended.rows) == ("rejected", name, [])
    assert ended.episode.failure is None
    assert len(ended.episode.interactions) == n_turns
    kept = await run(work, **limits, **{f"on_{name}": -0.5})
    assert (kept.episode.outcome, kept.episode.limit) == ("truncated", name)
    assert kept.episode.reward == -0.5
    [row] = kept.rows
    assert row.truncated
    sampled = [token for token, m in zip(row.input_ids, row.loss_mask, strict=True) if m]
    whole = [7, 8, 9] * 3
    assert sampled == whole[: min(limits.get("output_tokens", 9), 3 * n_turns)]


async def test_out_of_time_what_is_finished_may_be_kept():
    ended = await run(sleeps, seconds=0.02)
    assert (ended.episode.outcome, ended.episode.limit) == ("timeout", "seconds")
    assert ended.episode.failure.place == "timeout"
    kept = await run(sleeps, seconds=0.02, on_seconds=0)
    assert (kept.episode.outcome, kept.episode.reward, len(kept.rows)) == ("truncated", 0.0, 1)
    engine = FakeEngine()
    engine.hold()
    nothing = await run(OneCall().arun_episode, engine, seconds=0.02, on_seconds=0)
    assert (nothing.episode.outcome, nothing.episode.limit) == ("timeout", "seconds")


async def test_a_call_may_sample_no_more_than_is_left():
    engine = FakeEngine(lambda request: Reply([5] * 10))

    async def work(engine, data):
        gconfig = GenerationHyperparameters(max_new_tokens=6, min_new_tokens=5)
        for _ in range(2):
            await engine.agenerate(ModelRequest([1], gconfig))

    ended = await run(work, engine, output_tokens=8)
    assert [r.gconfig.max_new_tokens for r in engine.requests] == [6, 2]
    assert [r.gconfig.min_new_tokens for r in engine.requests] == [5, 2]
    assert (ended.output_tokens, ended.episode.limit) == (8, "output_tokens")


async def test_limits_count_in_a_run_and_say_so():
    async with (
        asyncio.timeout(10),
        executor(Calls(talks), limits=LimitsConfig(turns=2, on_turns=0.5)) as running,
    ):
        await running.next_batch()
        metrics = running.take_metrics()
    assert metrics["rollout/limit/turns"] == 8
    assert metrics["rollout/outcome/truncated"] == 8
    assert metrics["rollout/outcome/timeout"] == 0
    assert running.take_metrics()["rollout/limit/turns"] == 0
    from areal_agent.errors import RolloutError

    async with (
        asyncio.timeout(10),
        executor(Calls(talks), limits=LimitsConfig(turns=2), max_empty_rounds=1) as running,
    ):
        with pytest.raises(RolloutError, match=r"rejected at rollout\.limits\.turns"):
            await running.next_batch()


def test_a_policy_is_reject_or_a_number():
    assert LimitsConfig(on_turns=-1).on_turns == -1
    for value in ("keep", float("nan"), float("inf")):
        with pytest.raises((ValueError, ConfigError)):
            LimitsConfig(on_turns=value)
