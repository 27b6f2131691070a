"""The time, chance and tools of an episode: what they give, and what is noted of it."""

import asyncio
import threading
import time
from functools import partial

import pytest
from rollout_support import Calls

from areal_agent import workflow_context
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.testing.fakes import FakeEngine


async def tape_of(function, *, sample=0, seconds=5.0):
    spec = EpisodeSpec("0:3:0", "0:3", seed=1, epoch=0, index=3, sample=sample)

    async def episode(engine, data):
        await function()

    run = await run_episode(
        Calls(episode), FakeEngine(), {}, spec, limits=LimitsConfig(seconds=seconds)
    )
    assert run.episode.tape is not None
    return run.episode, run.episode.tape


def add(left, right=0):
    return left + right


async def test_outside_of_an_episode_they_work_and_nothing_is_noted():
    assert await workflow_context.tool(add, 1, right=2) == 3
    assert abs(workflow_context.now() - time.time()) < 5
    assert workflow_context.random() is not workflow_context.random()


async def test_tools_are_noted_with_arguments_and_results():
    async def slow_add(left):
        await asyncio.sleep(0)
        return [left, {"é": 2**80}]

    async def episode():
        assert await workflow_context.tool(add, 1, right=2) == 3
        assert await workflow_context.tool(slow_add, 4) == [4, {"é": 2**80}]
        assert await workflow_context.call_tool(partial(add, 5), kwargs={"right": 1}) == 6
        assert await workflow_context.tool("math:floor", 2.5) == 2

    _, tape = await tape_of(episode)
    assert [(c.name, c.args, c.result) for c in tape.calls] == [
        ("add", b'[[1],{"right":2}]', b"3"),
        ("slow_add", b"[[4],{}]", b'[4,{"\\u00e9":1208925819614629174706176}]'),
        ("add", b'[[],{"right":1}]', b"6"),
        ("floor", b"[[2.5],{}]", b"2"),
    ]
    assert [(c.began, c.ended) for c in tape.calls] == [(0, 1), (2, 3), (4, 5), (6, 7)]


async def test_what_json_cannot_hold_is_shown():
    async def episode():
        await workflow_context.tool(lambda x: (x, 1), float("nan"))

    _, tape = await tape_of(episode)
    (call,) = tape.calls
    assert (call.args, call.result) == (None, None)
    assert call.shown == "((nan,), {}) (nan, 1)"


async def test_what_a_tool_raises_is_raised_and_noted():
    def broken():
        raise KeyError("x")

    def stops():
        raise StopIteration(3)

    def leaves():
        raise SystemExit(4)

    async def episode():
        with pytest.raises(KeyError):
            await workflow_context.tool(broken)
        for function in (stops, leaves):
            with pytest.raises(RuntimeError, match="the tool raised S"):
                await workflow_context.tool(function)

    episode_, tape = await tape_of(episode)
    assert episode_.outcome == "rejected"
    assert tape.calls[0].error == {
        "type": "KeyError",
        "module": "builtins",
        "message": "'x'",
        "args": ["x"],
    }


def test_threads_of_tools_are_used_again_until_the_loop_ends():
    seen = []

    def looks():
        seen.append(threading.current_thread())
        assert seen[-1].name == "tool looks"

    async def episode():
        for _ in range(20):
            await workflow_context.call_tool(looks)
            while seen[-1].name != "tool, idle":  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.001)

    asyncio.run(tape_of(episode))
    assert len(seen) == 20
    assert len(set(seen)) == 1
    seen[0].join(5)
    assert not seen[0].is_alive()


async def test_a_tool_that_blocks_holds_up_neither_the_loop_nor_the_end():
    """It is left behind in a thread that the process does not wait for."""
    release = threading.Event()

    def blocks():
        release.wait(30)

    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def episode():
        with pytest.raises(TimeoutError, match=r"the tool blocks took longer than 0\.05 s"):
            await workflow_context.call_tool(blocks, timeout_seconds=0.05)

    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        episode_, tape = await tape_of(episode)
        counting.cancel()
    assert episode_.failure is None
    assert turns > 5
    (thread,) = [one for one in threading.enumerate() if one.name == "tool blocks"]
    assert thread.daemon
    release.set()
    while thread.name == "tool blocks":  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.001)
    assert thread.name == "tool, idle"
    assert tape.calls[0].error is not None
    assert tape.calls[0].seconds >= 0.05


async def test_a_call_that_the_episode_gave_up_has_no_end():
    async def hangs():
        await asyncio.Event().wait()

    async def episode():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await workflow_context.tool(hangs)

    _, tape = await tape_of(episode)
    assert [call.ended for call in tape.calls] == [None]


async def test_time_is_noted_and_chance_repeats_but_differs_within_a_group():
    drawn = []

    async def episode():
        drawn.append([workflow_context.random().random() for _ in range(2)])
        workflow_context.now()

    tapes = [(await tape_of(episode, sample=sample))[1] for sample in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert tapes[0].random_seed == tapes[1].random_seed != tapes[2].random_seed
    assert [len(tape.clock) for tape in tapes] == [1, 1, 1]
    assert abs(tapes[0].clock[0] - time.time()) < 5
