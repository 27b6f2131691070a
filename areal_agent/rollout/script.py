"""What an episode was told, played back: each call gets what the same call got, and in its place.

Calls that go on at once are told apart by what they ask. They begin and end in the recorded order,
whatever the time between: code that runs as it did then sees the world as it was then.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from areal_agent.errors import RequestError

PATIENCE_SECONDS = 3.0
"""How long a call waits for another one that came before it when the episode was recorded."""


class ReplayDiffers(RequestError):
    """The code asked for something else than when it was recorded: there is no answer to it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a replay is not what was recorded."""

    what: str
    """What differs: a call, or the result."""
    recorded: str
    now: str


@dataclass(slots=True, eq=False)
class Event:
    """One recorded call."""

    kind: Literal["model", "tool"]
    record: Mapping[str, Any]
    prompt_ids: list[int]
    """Of a model; nothing for a tool."""
    text: str
    """What it asked for, for people."""
    is_begun: bool = False
    is_over: bool = False

    @property
    def began(self) -> int:
        """Its place in the order of things."""
        return self.record["at"][0]

    @property
    def ended(self) -> int | None:
        """The same of its end; None when it was given up."""
        return self.record["at"][1]


class Script:
    """The calls of one recorded episode, and how far they have come."""

    def __init__(self, events: list[Event], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.events = sorted(events, key=lambda event: event.began)
        self.difference: Difference | None = None
        """The first one; nothing is answered after it."""
        self.is_done = asyncio.Event()
        """Set once all has been asked that was recorded, and all is answered that was."""
        self._patience_seconds = patience_seconds
        self._moved = asyncio.Event()
        self._check_done()

    async def play(self, find: Callable[[list[Event]], Event | None], asked: "Asked") -> Event:
        """Wait until a call may end as it did; return what was recorded of it.

        Args:
            find: chooses among the calls of this kind that have not begun.
            asked: what is asked for now.

        Raises:
            ReplayDiffers: it was never recorded, or not in this place.
        """
        if self.difference is not None:
            self._refuse()
        event = find([one for one in self.events if one.kind == asked.kind and not one.is_begun])
        if event is None:
            self.differ(asked.against(self._expected(asked.kind)))
        before = [e for e in self.events if e.ended is not None and e.ended < event.began]
        await self._until(lambda: all(e.is_begun for e in before), before, asked)
        event.is_begun = True
        self._move()
        try:
            await self._end_of(event)
        finally:
            event.is_over = True
            self._move()
        return event

    async def _end_of(self, event: Event) -> None:
        """Wait until all has begun and ended that did so before the end of `event`."""
        end = event.ended
        if end is None:
            await asyncio.Event().wait()  # until the episode gives it up, as it did then
            return
        begun = [e for e in self.events if e.began < end]
        over = [e for e in begun if e.ended is not None and e.ended < end]
        await asyncio.sleep(0)
        await self._until(
            lambda: all(e.is_begun for e in begun) and all(e.is_over for e in over), begun, None
        )

    def differ(self, difference: Difference) -> NoReturn:
        """Note the first difference, and end what is under way."""
        if self.difference is None:
            self.difference = difference
            self._move()
        self._refuse()

    def left(self) -> Event | None:
        """The first recorded call that was not made."""
        return next((event for event in self.events if not event.is_begun), None)

    def _refuse(self) -> NoReturn:
        assert self.difference is not None
        raise ReplayDiffers(f"the replay differs from the record: {self.difference.what}")

    def _expected(self, kind: str) -> Event | None:
        """What should have been asked: of those that may be next, rather one of the same kind."""
        left = [event for event in self.events if not event.is_begun]
        ready = [
            event
            for event in left
            if not any(e.ended is not None and e.ended < event.began for e in left)
        ]
        same = [event for event in ready if event.kind == kind]
        return next(iter(same or ready), None)

    async def _until(
        self, condition: Callable[[], bool], events: list[Event], asked: "Asked | None"
    ) -> None:
        """Wait for other calls of the episode, as long as any of them moves."""
        while not condition():
            if self.difference is not None:
                self._refuse()
            self._moved.clear()
            try:
                async with asyncio.timeout(self._patience_seconds):
                    await self._moved.wait()
            except TimeoutError:
                if condition():
                    return
                missing = next((e for e in events if not e.is_begun), None)
                if missing is None:
                    continue  # it has begun and waits itself: that one will say what is missing
                if asked is not None:
                    self.differ(asked.against(missing))
                self.differ(Difference("a call is missing", missing.text, "nothing is asked for"))

    def _move(self) -> None:
        self._moved.set()
        self._check_done()

    def _check_done(self) -> None:
        if all(e.is_over or (e.is_begun and e.ended is None) for e in self.events):
            self.is_done.set()


@dataclass(frozen=True, slots=True)
class Asked:
    """What the code asks for now."""

    kind: Literal["model", "tool"]
    name: str
    """For people: ``model call 2``."""
    text: str
    compare: Callable[[Event], tuple[str, str]] | None = None
    """Shows where this differs from a call of the same kind: the recorded side, and this one."""

    def against(self, event: Event | None) -> Difference:
        """Tell how this differs from what was recorded in its place."""
        if event is None:
            return Difference(self.name, "no further call", self.text)
        if event.kind != self.kind or self.compare is None:
            return Difference(self.name, event.text, self.text)
        recorded, now = self.compare(event)
        return Difference(self.name, recorded, now)
