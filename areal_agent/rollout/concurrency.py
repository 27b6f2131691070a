"""How many episodes are in flight: what the servers report, between a floor and a ceiling.

More episodes than the servers can decode only wait in their queues: tokens get older, deadlines
nearer, and nothing is faster. Fewer leave slots empty.
"""

import asyncio
from collections.abc import Awaitable, Callable

from areal_agent.inference.base import ServerLoad

POLL_SECONDS = 0.5
"""Between two questions to the servers."""
POLLS = 4
"""A decision rests on so many polls: what was there in all of them is no burst."""


class LoadLimit:
    """Chooses a limit on episodes in flight that keeps a short queue at the servers.

    The backlog is what runs and waits there, less the slots. Within ``[0, band]`` the limit stays;
    outside, it goes to where the backlog would be half the band if each episode had one request at
    the servers. As none has more than that on average, the backlog comes nearer from one side and
    never passes: under a constant load the limit settles.
    """

    def __init__(self, *, floor: int, ceiling: int, group_size: int) -> None:
        """Start at the ceiling.

        Args:
            floor: never below this, nor below a group.
            ceiling: never above this; at least a group.
            group_size: episodes that start together.
        """
        self.floor = min(max(floor, group_size), ceiling)
        self.ceiling = ceiling
        self.limit = ceiling
        self._group_size = group_size
        self._seen: list[tuple[int, ServerLoad]] = []

    def observe(self, in_flight: int, load: ServerLoad) -> int:
        """Take in a poll, made while so many episodes were in flight; returns the limit."""
        self._seen.append((in_flight, load))
        if len(self._seen) == POLLS:
            self._decide()
            self._seen.clear()
        return self.limit

    def _decide(self) -> None:
        band = max(self._group_size, max(load.slots for _, load in self._seen) // 2)
        wanted = [n - load.backlog + band // 2 for n, load in self._seen]
        if min(load.backlog for _, load in self._seen) > band:
            self.limit = max(min(self.limit, max(wanted)), self.floor)
        elif max(load.backlog for _, load in self._seen) < 0:
            self.limit = min(max(self.limit, min(wanted)), self.ceiling)


async def follow_load(
    law: LoadLimit,
    *,
    ask: Callable[[], Awaitable[ServerLoad | None]],
    in_flight: Callable[[], int],
    apply: Callable[[int], None],
    seconds: float = POLL_SECONDS,
) -> None:
    """Poll for ever, and hand each new limit to `apply`. Without an answer nothing changes."""
    while True:
        await asyncio.sleep(seconds)
        load = await ask()
        if load is not None:
            before = law.limit
            if law.observe(in_flight(), load) != before:
                apply(law.limit)
