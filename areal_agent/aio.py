"""Structured concurrency: the few helpers that the rest of the package needs.

Tasks start only inside a ``TaskGroup``; ``asyncio.gather``, ``create_task`` and ``wait_for`` are
banned by the linter.
"""

import asyncio
import gc
import importlib.util
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


async def collect(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results in the order given.

    The first failure cancels the rest and is raised bare, not in an ``ExceptionGroup``. A single
    one runs in the task that waits for it.
    """
    coroutines = list(coroutines)
    try:
        if len(coroutines) == 1:
            return [await coroutines[0]]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as error:
        raise first_error(error) from error
    return [task.result() for task in tasks]


def first_error(error: BaseException) -> BaseException:
    """Return the first leaf of a possibly nested exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def is_cancelled() -> bool:
    """Tell whether somebody has asked the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_shielded(awaitable: Awaitable[T]) -> T:
    """Await to the end even when cancelled meanwhile; the cancellation is raised afterwards.

    ``asyncio.shield`` alone would let the caller go on while the inner task becomes an orphan.
    """
    inner = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not inner.done():
        try:
            await asyncio.shield(inner)
        except asyncio.CancelledError as error:
            if inner.cancelled():
                raise
            cancelled = error
    if cancelled is not None:
        if inner.exception() is not None:
            raise cancelled from inner.exception()
        raise cancelled
    return inner.result()


async def run_to_end(clean_up: Callable[[], Awaitable[T]]) -> T:
    """Like `run_shielded`, for what may be called twice: also while the event loop is torn down.

    ``asyncio.run`` ends by cancelling every task, the shielded one as well, perhaps before its
    first step. It does so once.
    """
    try:
        return await run_shielded(clean_up())
    except asyncio.CancelledError:
        await run_shielded(clean_up())
        raise


@asynccontextmanager
async def task_group() -> AsyncGenerator[asyncio.TaskGroup]:
    """A ``TaskGroup`` that raises its first error bare."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as error:
        raise first_error(error) from error


async def open_stream(
    sock: socket.socket, stack: AsyncExitStack
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Read and write a connected socket, which is ours from here on; `stack` closes it."""
    sock.setblocking(False)
    try:
        reader, writer = await asyncio.open_connection(sock=sock)
    except BaseException:
        sock.close()
        raise
    stack.callback(writer.close)
    return reader, writer


class PerLoop(Generic[T]):
    """One value for each event loop, made at first use and closed with the loop.

    For what belongs to no run: a loop that ends as `asyncio.run` ends it closes its asynchronous
    generators, and one of these holds the value.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T]]] = (
            WeakKeyDictionary()
        )

    async def get(self) -> T:
        """Return the running loop's value."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            keeper = self._keep(loop)
            held = self._held[loop] = (await anext(keeper), keeper)
        return held[0]

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[T]:
        value = self._make()
        try:
            yield value
        finally:
            self._held.pop(loop, None)
            await self._close(value)


class Flag:
    """Like `asyncio.Event`, for where there are many: it is small until somebody waits for it."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Tell whether it is raised."""
        return self._is_set

    def set(self) -> None:
        """Raise it: all who wait go on."""
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Lower it."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is raised."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        await waiter


def fast_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes event loops: uvloop where it is installed (it has no wheel for some platforms)."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


class Turns:
    """Lets those who came wait for their turn, first come, first served.

    Coming is apart from waiting: one comes while a lock keeps the order, and waits after it.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def come(self) -> asyncio.Future[None]:
        """Take the next place; await it inside `turn`."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._call_next()
        return place

    @asynccontextmanager
    async def turn(self, place: asyncio.Future[None]) -> AsyncGenerator[None]:
        """Wait for the turn of `place`; leaving, also by cancellation, calls the next."""
        try:
            await place
            yield
        finally:
            self._queue.remove(place)
            self._call_next()

    def _call_next(self) -> None:
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)


YOUNG_OBJECTS = 10_000
"""So many new objects start a collection; Python's own 700 make episodes survive several."""


class Pacer:
    """Lets those who are ready at the same time go on one by one, each in a turn of the loop.

    A server answers many requests at once. Without it, all of them go on in a single turn, and
    timers and sockets wait for as long as that takes. One that comes alone does not wait.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def turn(self) -> None:
        """Wait until no other has gone on in this turn of the loop."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next, loop)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._queue.append(place)
        await place

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():  # else its task was cancelled
                place.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._is_taken = False


def settle_collector() -> None:
    """Spare a process that has imported what it needs most of the garbage collector's work.

    What is there stays, and is looked at no more. New objects are looked at less often, when most
    of them are gone already: ``tests/benchmarks/bench_executor.py`` has the difference.
    """
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *older)
