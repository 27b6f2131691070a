"""Where sessions wait for agents from elsewhere: first offered, first taken."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_agent.errors import SessionTimeout
from areal_agent.gateway.keys import AdminKey
from areal_agent.gateway.load import too_many
from areal_agent.gateway.session import Session, SessionSealed
from areal_agent.net.api_error import ApiError


@dataclass(eq=False, slots=True)
class Offer:
    """One episode that an agent from elsewhere may take, and what became of it."""

    name: str
    """Names the session; no secret."""
    facts: Mapping[str, Any]
    """What the agent is told of its task."""
    session: Session | None = None
    rows: int = 0
    """Rows that the episode gave; nothing is trained on without any."""
    error: str | None = "it was given up before: it was idle, took too long, or the run has ended"
    """Why there are no rows."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by its agent."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the session is sealed, for whatever reason."""


class Desk:
    """Hands out offers, one to each `start_session`, and takes them back at `end_session`."""

    def __init__(self, key: AdminKey) -> None:
        """Start closed, with nothing on offer.

        Args:
            key: what agents show to get a session.
        """
        self.key = key
        self.key_file: Path | None = None
        """Where a key that was made at random is written."""
        self.url = ""
        """Where agents find it, once it is open."""
        self._free: dict[str, Offer] = {}
        self._taken: dict[str, Offer] = {}
        self._used_at = time.monotonic()

    def open(self, url: str) -> str:
        """Take agents from now on; return what to tell who starts them."""
        if not self.url:
            if self.key_file is not None:
                self.key.write(self.key_file)
            self.url = url
            self._used_at = time.monotonic()
        return f"online agents: POST {url}/rl/start_session, with the key in {self.key.place}"

    def waits_for(self) -> str:
        """Say what the episodes on offer wait for; empty when nothing is on offer."""
        if not self._free:
            return ""
        return (
            f"online agents: {len(self._free)} sessions on offer at {self.url}, "
            f"{len(self._taken)} taken"
        )

    @contextlib.contextmanager
    def offer(self, name: str, facts: Mapping[str, Any]) -> Generator[Offer]:
        """Make an offer, for `until_taken` and `until_ended`; leaving tells those who ended it."""
        offer = Offer(name, facts)
        try:
            yield offer
        finally:
            self._free.pop(name, None)
            if self._taken.pop(name, None) is not None:
                self._used_at = time.monotonic()
            offer.closed.set()

    async def until_taken(self, offer: Offer, session: Session, *, seconds: float) -> None:
        """Wait until an agent takes the offer.

        Raises:
            SessionTimeout: no agent has been here for `seconds`.
        """
        offer.session = session
        self._free[offer.name] = offer

        def left() -> float:
            return seconds if self._taken else seconds + self._used_at - time.monotonic()

        if not await _set_in_time(offer.taken, left):
            raise SessionTimeout(
                f"no agent has started a session for {seconds:g} s (gateway.agents_timeout_seconds)"
            )

    async def until_ended(self, offer: Offer, *, idle_seconds: float) -> None:
        """Wait until the agent says that it has ended.

        Raises:
            SessionTimeout: it has made no call for `idle_seconds`.
        """
        session = offer.session
        assert session is not None
        if not await _set_in_time(offer.ended, lambda: idle_seconds - session.idle_seconds):
            raise SessionTimeout(
                f"the session made no call for {idle_seconds:g} s (gateway.session_idle_seconds)"
            )

    def take(self) -> Offer:
        """Take what has been on offer for longest.

        Raises:
            ApiError: 404, this run offers nothing; 429, nothing is on offer now.
        """
        if not self.url:
            raise ApiError(
                "this run offers no sessions: its workflow is another one than 'online'",
                status=404,
                code="not_online",
            )
        self._used_at = time.monotonic()
        if not self._free:
            raise too_many(
                "no session is on offer: as many are taken as the bounds on concurrency and "
                "staleness allow; try again",
                code="no_session_on_offer",
            )
        name = next(iter(self._free))
        offer = self._taken[name] = self._free.pop(name)
        assert offer.session is not None
        offer.session.touch()
        offer.taken.set()
        return offer

    def named(self, name: str | None) -> Offer:
        """Return a taken offer by its name.

        Raises:
            ApiError: 404, there is none.
        """
        offer = None if name is None else self._taken.get(name)
        if offer is None:
            raise ApiError(
                f"session_id: expected the id of an open session, got {name!r:.80}",
                status=404,
                param="session_id",
                code="no_such_session",
            )
        return offer

    def of(self, session: Session) -> Offer:
        """Return the offer that a session belongs to.

        Raises:
            ApiError: 410, it has ended; 404, the session was not offered.
        """
        if session.is_sealed:
            raise SessionSealed
        for offer in self._taken.values():
            if offer.session is session:
                return offer
        raise ApiError(
            "this session was not started by /rl/start_session: it ends with its episode",
            status=404,
            code="not_online",
        )

    async def end(self, offer: Offer) -> None:
        """End a session, and wait until it is sealed.

        Raises:
            ApiError: 410, it has been ended before.
        """
        if offer.ended.is_set():
            raise SessionSealed
        offer.ended.set()
        await offer.closed.wait()  # its episode sees to it, whatever happens


async def _set_in_time(event: asyncio.Event, left: Callable[[], float]) -> bool:
    """Wait for `event`, as long as `left()` seconds are left; tell whether it came."""
    while not event.is_set():
        seconds = left()
        if seconds <= 0:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
    return True
