"""What blocks the event loop is named, and how late the loop is is measured."""

import asyncio
import logging
import time

from rollout_support import Calls, settle
from supervisor_support import Supervised

from areal_agent.config.supervisor import SupervisorConfig
from areal_agent.rollout.live import LiveEpisodes
from areal_agent.rollout.loop_watch import BEAT_SECONDS, Lag, LoopWatch
from areal_agent.rollout.workflow import RolloutWorkflow

BLOCK = SupervisorConfig(block_seconds=0.1)


class Sleepy(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        if data["index"] == 0:
            time.sleep(0.5)  # noqa: ASYNC251 - what is to be found
        return


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


async def test_a_workflow_that_blocks_is_named_while_it_blocks(tmp_path, caplog):
    """S14."""
    run = Supervised(tmp_path / "stall.json")
    named_at = []
    caplog.handler.emit = lambda record, emit=caplog.handler.emit: (
        named_at.append(time.monotonic()),
        emit(record),
    )
    async with asyncio.timeout(20), LoopWatch(BLOCK, episodes=run.episodes) as watch:
        async with run.running(Sleepy()):
            began = time.monotonic()
            await settle()
            ended = time.monotonic()
            while len(caplog.records) < 2:  # noqa: ASYNC110 - it is a thread that writes them
                await asyncio.sleep(0.01)
        named, goes_on = warnings_of(caplog)
        assert "Sleepy.arun_episode (" in named
        assert "test_loop_watch.py:" in named
        assert ": time.sleep(0.5)" in named
        assert "in episode 0:0:" in named
        assert began < named_at[0] < ended
        assert goes_on.startswith("the event loop goes on after ")
        metrics = watch.take_metrics()
        assert metrics["loop/lag_max_ms"] > 400
        assert metrics["loop/lag_p99_ms"] > 100
        await asyncio.sleep(3 * BEAT_SECONDS)
        assert watch.take_metrics()["loop/lag_max_ms"] < 400


async def test_the_same_line_is_not_named_for_ever(caplog):
    async with LoopWatch(SupervisorConfig(block_seconds=0.05), episodes=LiveEpisodes()):
        for _ in range(5):
            time.sleep(0.2)  # noqa: ASYNC251 - what is to be found
            await asyncio.sleep(0.1)
    named = [text for text in warnings_of(caplog) if "time.sleep(0.2)" in text]
    assert 1 <= len(named) <= 3
    assert all("(it is the " in text for text in named[1:])


async def test_an_import_is_not_blamed(caplog, tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with LoopWatch(BLOCK, episodes=LiveEpisodes()):
        await asyncio.sleep(0.05)
        import slow_to_import

        del slow_to_import
        await asyncio.sleep(0.05)
    assert warnings_of(caplog) == []


async def test_a_loop_that_stays_blocked_is_reported_and_ends_the_process():
    told, codes = [], []
    config = SupervisorConfig(
        block_seconds=0.04, report_seconds=0.1, cancel_seconds=0.1, end_seconds=0.35
    )
    watch = LoopWatch(
        config,
        episodes=LiveEpisodes(),
        tell=lambda why, stack, seconds: told.append((why, stack, seconds)),
        end=codes.append,
    )
    async with watch:
        await asyncio.sleep(0.05)
        time.sleep(0.5)  # noqa: ASYNC251 - what is to be found
    assert [why for why, _, _ in told][:2] == ["the event loop is blocked"] * 2
    assert all("test_loop_watch.py" in stack[-1] for _, stack, _ in told)
    assert told[-1][0].startswith("the run ends: the event loop has been blocked for ")
    assert codes[0] == 4


async def test_a_loop_that_runs_is_left_alone(caplog):
    async with LoopWatch(BLOCK, episodes=LiveEpisodes()) as watch:
        await asyncio.sleep(0.3)
        assert watch.blocked() == ([], 0.0)
    assert not caplog.records


def test_a_block_counts_for_each_moment_in_it():
    lag = Lag()
    for _ in range(98):
        lag.late(0.001)
    lag.late(2.5 * BEAT_SECONDS)  # two more beats were due meanwhile, one late by half a beat
    p99, largest = lag.take()
    assert p99 == 1000 * 1.5 * BEAT_SECONDS
    assert largest == 1000 * 2.5 * BEAT_SECONDS
    assert lag.take() == (0.0, 0.0)


async def test_users_code_is_told_from_ours():
    from areal_agent.rollout.stacks import coroutine_places, users_place

    stop = asyncio.Event()
    work = Calls(lambda engine, data: stop.wait()).arun_episode(None, {})
    task = asyncio.ensure_future(work)
    await settle(2)
    places = coroutine_places(task.get_coro())
    assert [one.function for one in places] == ["Calls.arun_episode", "Event.wait"]
    assert users_place(places) == places[0]
    stop.set()
    await task
