"""What a run waits for: each wait has an owner, a name, and a deadline or a supervisor."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from areal_agent.errors import StallError


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One wait that goes on."""

    owner: str
    """Who is waited for."""
    name: str
    """What for."""
    since: float
    """Of the clock of its `Waits`."""
    seconds: float | None
    """How long it may take; None: the supervisor watches it."""


class Waits:
    """The waits of a run that go on.

    A wait that is overdue, or in which a `StallError` is raised, ends with an error that says where
    the report is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.open: list[Wait] = []
        """Those that go on, outermost first."""
        self.n_over = 0
        """Those that ended well, so far."""
        self.report: Callable[[str], str] | None = None
        """Writes a report on why the run ends; returns where it is."""

    @property
    def n_with_deadline(self) -> int:
        """How many will end by themselves."""
        return sum(wait.seconds is not None for wait in self.open)

    @asynccontextmanager
    async def until(
        self, owner: str, name: str, seconds: float | None = None, *, setting: str = ""
    ) -> AsyncGenerator[None]:
        """The body waits for `owner`, at most so long.

        Args:
            owner: who is waited for.
            name: what for.
            seconds: how long it may take; None leaves it to the supervisor.
            setting: where that is said.

        Raises:
            StallError: it took longer.
        """
        wait = Wait(owner, name, self.clock(), seconds)
        limit = asyncio.timeout(seconds)
        self.open.append(wait)
        try:
            async with limit:
                yield
            self.n_over += 1
        except StallError as error:
            raise self._reported(str(error), error) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            at = f" ({setting})" if setting else ""
            text = f"the run waited for {owner}, {name}, for longer than {seconds:g} s{at}"
            raise self._reported(text) from error
        finally:
            self.open.remove(wait)

    def _reported(self, text: str, error: StallError | None = None) -> StallError:
        """Write the report, unless there is one."""
        if error is not None and (error.path or self.report is None):
            return error
        if self.report is None:
            return StallError(text)
        path = self.report(text)
        return StallError(f"{text}; the report is in {path}", path=path)
