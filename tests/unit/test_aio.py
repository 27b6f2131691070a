"""Structured concurrency helpers: order, first errors, cancellation."""

import asyncio
import itertools

import pytest

from areal_agent.aio import Flag, Pacer, Turns, collect, run_shielded, task_group


async def test_results_come_in_the_order_given() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        await second.wait()
        return "slow"

    async def quick() -> str:
        second.set()
        first.set()
        return "quick"

    assert await collect([slow(), quick()]) == ["slow", "quick"]


async def test_the_first_failure_is_bare_and_cancels_the_rest() -> None:
    cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fails() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        await collect([waits(), fails()])
    assert cancelled.is_set()


async def test_a_task_group_raises_its_first_error_bare() -> None:
    async def fails() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError):
        async with task_group() as group:
            group.create_task(fails())


async def test_shielded_work_ends_before_the_cancellation_is_raised() -> None:
    release, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await release.wait()
        done.set()

    task: asyncio.Task[None]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_shielded(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        release.set()
    assert done.is_set()
    assert task.cancelled()


async def test_turns_go_in_order_of_coming_whoever_waits_first() -> None:
    turns, order = Turns(), list[int]()

    async def take(number: int, place: asyncio.Future[None]) -> None:
        async with turns.turn(place):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    places = [turns.come() for _ in range(3)]
    await collect([take(i, places[i]) for i in (2, 0, 1)])
    assert order == [0, 0, 1, 1, 2, 2]


async def test_a_cancelled_turn_calls_the_next() -> None:
    turns, order = Turns(), list[int]()
    hold = asyncio.Event()

    async def take(number: int, place: asyncio.Future[None], *, wait: bool = False) -> None:
        async with turns.turn(place):
            order.append(number)
            if wait:
                await hold.wait()

    async with asyncio.TaskGroup() as group:
        holding = group.create_task(take(0, turns.come(), wait=True))
        waiting = group.create_task(take(1, turns.come()))
        group.create_task(take(2, turns.come()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        holding.cancel()
    assert order == [0, 2]


async def test_all_who_wait_go_on() -> None:
    flag = Flag()
    async with task_group() as group:
        waits = [group.create_task(flag.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waits[1].cancel()
        await asyncio.sleep(0)
        assert not flag.is_set()
        flag.set()
        flag.set()
    assert [task.cancelled() for task in waits] == [False, True, False]
    await flag.wait()


async def test_a_lowered_flag_is_waited_for_again() -> None:
    flag = Flag()
    flag.set()
    flag.clear()
    assert not flag.is_set()
    async with task_group() as group:
        waiting = group.create_task(flag.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        flag.set()


async def test_those_ready_at_once_go_on_one_by_one_and_a_timer_in_between():
    pacer, gone, turns = Pacer(), [], []
    loop = asyncio.get_running_loop()

    async def go(name):
        await pacer.turn()
        gone.append(name)

    def count():
        turns.append(len(gone))
        if len(gone) < 4:
            loop.call_soon(count)

    tasks = [asyncio.ensure_future(go(name)) for name in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    loop.call_soon(count)
    await asyncio.wait(tasks)
    assert gone == [0, 1, 3, 4]
    assert max(after - before for before, after in itertools.pairwise(turns)) == 1


async def test_one_that_comes_alone_does_not_wait():
    pacer = Pacer()
    for _ in range(3):
        with pytest.raises(StopIteration):
            pacer.turn().send(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
