"""Where code stands: of a coroutine that waits, of a thread that runs; and which line is a user's.

Reads only: it may be called from another thread.
"""

import linecache
import sys
import sysconfig
from collections.abc import Coroutine, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

_PACKAGE = str(Path(__file__).parent.parent) + "/"
_EXAMPLES_OF_USE = _PACKAGE + "workflows/"
_LIBRARIES = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")})
_IMPORTING = "<frozen importlib"


@dataclass(frozen=True, slots=True)
class Place:
    """A line that is being executed."""

    file: str
    line: int
    function: str
    """With the class that it belongs to, if there is one."""

    def __str__(self) -> str:
        """Name it, with what stands there."""
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.function} ({self.file}:{self.line}{': ' + text if text else ''})"

    @property
    def is_users(self) -> bool:
        """Whether it is neither Python's, nor an installed package's, nor ours.

        Ready workflows count as users': they are there to be copied.
        """
        if self.file.startswith("<"):
            return self.file.startswith(("<stdin>", "<ipython"))
        if self.file.startswith(_PACKAGE):
            return self.file.startswith(_EXAMPLES_OF_USE)
        return not self.file.startswith(_LIBRARIES)


def place(frame: FrameType) -> Place:
    """Return where a frame stands."""
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def coroutine_places(coroutine: object) -> list[Place]:
    """Return where a suspended coroutine stands, outermost first, as far as it can be followed."""
    places: list[Place] = []
    while coroutine is not None and len(places) < _DEEPEST:
        frame, coroutine = _step(coroutine)
        if frame is not None:
            places.append(place(frame))
    return places


_DEEPEST = 100


def _step(awaitable: object) -> tuple[FrameType | None, object]:
    if isinstance(awaitable, CoroutineType):
        return awaitable.cr_frame, awaitable.cr_await
    if isinstance(awaitable, GeneratorType):
        return awaitable.gi_frame, awaitable.gi_yieldfrom
    # Of `athrow` and `asend` nothing can be seen; a future is the end.
    return None, None


def places_of(coroutines: Iterable[Coroutine[Any, Any, Any] | Generator[Any]]) -> list[Place]:
    """Return where nested coroutines stand, outermost first."""
    return [one for coroutine in coroutines for one in coroutine_places(coroutine)]


def thread_places(thread_id: int) -> list[Place]:
    """Return where a thread is, outermost first; nothing when there is no such thread."""
    frame = sys._current_frames().get(thread_id)  # pyright: ignore[reportPrivateUsage]
    places: list[Place] = []
    while frame is not None:
        places.append(place(frame))
        frame = frame.f_back
    return places[::-1]


def within_loop(places: Iterable[Place]) -> list[Place]:
    """Return what an event loop's thread does for one of its tasks; nothing while it is idle."""
    inside: list[Place] = []
    for one in places:
        inside.append(one)
        if one.function in _LOOPS:
            inside.clear()
    return [] if inside and inside[-1].function.endswith("Selector.select") else inside


_LOOPS = {"Handle._run", "Runner.run", "BaseEventLoop._run_once", "BaseEventLoop.run_forever"}
"""Of a loop that is not Python's, there are no frames between `Runner.run` and a task's."""


def users_place(places: Iterable[Place]) -> Place | None:
    """Return the innermost line of a user's code, or None."""
    return next((one for one in reversed(list(places)) if one.is_users), None)


def is_importing(places: Iterable[Place]) -> bool:
    """Tell whether a module is being imported there."""
    return any(one.file.startswith(_IMPORTING) for one in places)
