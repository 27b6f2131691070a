"""Code that need not end when it is cancelled: it is asked, given time, and then left behind."""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stoppable(Generic[T]):
    """Awaits a coroutine of others in the current task, and can let go of it.

    A coroutine that goes on after its task was cancelled is closed after `grace_seconds`; the
    cancellation is then raised here. Of nested ones the innermost goes first, so that what is
    around it can clean up.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        grace_seconds: float,
        nested: "list[Stoppable[Any]]",
    ) -> None:
        """Take the coroutine; it begins when this is awaited.

        Args:
            coroutine: may do what it likes.
            grace_seconds: what it may take to clean up.
            nested: those of the same episode that are awaited already, outermost first.
        """
        self.coroutine = coroutine
        self.was_left = False
        """It did not end by itself."""
        self._grace = grace_seconds
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._nested = nested

    def __await__(self) -> Generator[Any, Any, T]:
        """Pass everything on between the event loop and the coroutine."""
        self._task = asyncio.current_task()
        self._nested.append(self)
        try:
            return (yield from self._steps())
        finally:
            self._nested.remove(self)
            if self._timer is not None:
                self._timer.cancel()

    def _steps(self) -> Generator[Any, Any, T]:
        coroutine = self.coroutine
        error: BaseException | None = None
        try:
            while True:
                waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
                try:
                    yield waits_for
                    error = None
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as thrown:
                    if self.was_left:
                        self._leave()
                        raise
                    if isinstance(thrown, asyncio.CancelledError) and self._timer is None:
                        self._wait_for_end()
                    error = thrown
        except StopIteration as end:
            return end.value
        finally:
            error = None  # it leads to this frame

    def _wait_for_end(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._grace, self._give_up)

    def _give_up(self) -> None:
        """Its time is over: take the task back, unless the cancellation is over too."""
        self._timer = None
        task = self._task
        if task is None or task.done() or not task.cancelling():
            return  # it was an inner cancellation, and is over
        mine = [one for one in self._nested if one._task is task]
        if mine[-1] is not self:
            self._wait_for_end()
            return
        self.was_left = True
        task.cancel()

    def _leave(self) -> None:
        """Close the coroutine; one that holds on even to that is not resumed all the same."""
        if self._task is not None:
            self._task.uncancel()
        with suppress(Exception):
            self.coroutine.close()
