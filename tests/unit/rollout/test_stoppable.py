"""Code that does not end when it is cancelled ends all the same, and nothing of it goes on."""

import asyncio
import contextlib
import gc

import pytest
from rollout_support import Calls, OneCall, executor

from areal_agent.config.rollout_limits import GroupConfig, LimitsConfig
from areal_agent.errors import InferenceError
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.rollout.stoppable import Stoppable
from areal_agent.testing.fakes import FakeEngine

SPEC = EpisodeSpec(id="0:0:0", prompt_id="0:0", seed=1, epoch=0, index=0)
SHORT = LimitsConfig(seconds=0.03, grace_seconds=0.03)


async def clings(*_):
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def clings_to_the_last(*_):
    """Does not even heed being closed; not for ever, for the sake of the interpreter's end."""
    for _ in range(4):
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


async def returns_late(engine, data):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return await OneCall().arun_episode(FakeEngine(), data)


async def raises_late(engine, data):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("something else") from None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [clings, clings_to_the_last, returns_late, raises_late])
async def test_an_episode_ends_at_its_limit_whatever_its_code_does(work):
    async with asyncio.timeout(5):
        ended = await run_episode(Calls(work), FakeEngine(), {}, SPEC, limits=SHORT)
    assert (ended.episode.outcome, ended.episode.limit) == ("timeout", "seconds")
    assert ended.episode.failure.type == "TimeoutError"
    assert "0.03 s (rollout.limits.seconds)" in ended.episode.failure.message
    assert len(asyncio.all_tasks()) == 1
    del ended
    gc.collect()


async def test_after_the_limit_no_model_is_called():
    engine, refused = FakeEngine(), []

    async def insists(own, data):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await OneCall().arun_episode(own, data)
            except InferenceError as error:
                refused.append(error)
            await clings()

    ended = await run_episode(Calls(insists), engine, {}, SPEC, limits=SHORT)
    assert ended.episode.outcome == "timeout"
    assert "has ended" in str(refused[0])
    assert engine.requests == []


async def test_cleaning_up_takes_its_time():
    done = []

    async def tidy(engine, data):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            done.append(True)

    limits = LimitsConfig(seconds=0.02, grace_seconds=5)
    ended = await run_episode(Calls(tidy), FakeEngine(), {}, SPEC, limits=limits)
    assert ended.episode.outcome == "timeout"
    assert done == [True]


async def test_limits_that_code_sets_itself_are_its_own_affair():
    async def careful(engine, data):
        for _ in range(3):
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                pass
        await asyncio.sleep(0.05)
        return await OneCall().arun_episode(engine, data)

    limits = LimitsConfig(seconds=5, grace_seconds=0.02)
    ended = await run_episode(Calls(careful), FakeEngine(), {}, SPEC, limits=limits)
    assert ended.episode.outcome == "ok"


async def test_of_nested_ones_the_inner_is_left_and_the_outer_cleans_up():
    told = []

    nested = []

    async def outer():
        try:
            await Stoppable(clings(), grace_seconds=0.02, nested=nested)
        finally:
            await asyncio.sleep(0.01)
            told.append("cleaned up")

    code = Stoppable(outer(), grace_seconds=0.02, nested=nested)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await code
    assert told == ["cleaned up"]
    assert not code.was_left


async def test_a_run_ends_although_its_episodes_do_not():
    """Nothing is left to hang the end of the event loop."""
    ended = []
    async with asyncio.timeout(5):
        async with executor(
            Calls(clings),
            limits=LimitsConfig(seconds=60, grace_seconds=0.03),
            on_episode=ended.append,
        ) as running:
            await asyncio.sleep(0.01)
            assert running.stats().running_episodes == 8
        assert running.stats().running_episodes == 0
    assert {episode.outcome for episode in ended} == {"cancelled"}
    assert len(ended) == 8
    assert len(asyncio.all_tasks()) == 1


async def test_the_place_of_one_that_is_left_is_free_again():
    clinging = iter([True])

    async def work(engine, data):
        if next(clinging, False):
            await clings()
        return await OneCall().arun_episode(engine, data)

    async with (
        asyncio.timeout(5),
        executor(Calls(work), limits=SHORT, group=GroupConfig(retries=1)) as running,
    ):
        batch = await running.next_batch()
        assert [len(group.episodes) for group in batch.groups] == [2] * 4
        metrics = running.take_metrics()
    assert metrics["rollout/outcome/timeout"] == metrics["rollout/retries"] == 1
