"""How many groups may start: the half of the staleness bound that acts before any work is done.

The other half, at consumption, is the executor's sweep.
"""

import asyncio
import time
from collections.abc import Callable

from areal_agent.errors import ConfigError


def groups_ahead(
    *, batch_size: int, max_offpolicyness: int, version: int, accepted: int, running: int
) -> int:
    """Return ``(η + version + 1) · B - (accepted + running)``, in groups; may be negative."""
    return (max_offpolicyness + version + 1) * batch_size - (accepted + running)


class Gate:
    """Admits groups of episodes while the run may work ahead.

    Counts groups for staleness and episodes for concurrency: an episode that ends frees its place
    at once, although its group goes on. One event loop; nothing here blocks.
    """

    def __init__(
        self,
        *,
        max_concurrent: int,
        batch_size: int,
        max_offpolicyness: int,
        group_size: int,
        version: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_concurrent < group_size:
            raise ConfigError(
                f"rollout.max_concurrent_rollouts is {max_concurrent}, but a group has "
                f"{group_size} episodes (gconfig.n_samples): raise the first or lower the second"
            )
        self._max_concurrent = max_concurrent
        self._limit = max_concurrent
        self._batch_size = batch_size
        self._eta = max_offpolicyness
        self._group_size = group_size
        self._changed = asyncio.Event()
        self.paused = False
        self.running_groups = 0
        self.running_episodes = 0
        self.version = 0
        """Version of the weights that are served."""
        self.accepted = 0
        """Groups that were finished and not given back, consumed ones included."""
        self._clock = clock
        self._active_since: float | None = None
        self._active: list[tuple[float, float]] = []
        self.recover(version)

    def active_spans(self) -> list[tuple[float, float]]:
        """Start and end of each time in which episodes were in flight, the present one included."""
        if self._active_since is None:
            return list(self._active)
        return [*self._active, (self._active_since, self._clock())]

    @property
    def groups_ahead(self) -> int:
        """How many more groups the staleness bound allows."""
        return groups_ahead(
            batch_size=self._batch_size,
            max_offpolicyness=self._eta,
            version=self.version,
            accepted=self.accepted,
            running=self.running_groups,
        )

    @property
    def limit(self) -> int:
        """Most episodes in flight now."""
        return self._limit

    @limit.setter
    def limit(self, episodes: int) -> None:
        """Change it; nothing that runs is cancelled.

        Raises:
            ValueError: a group would never fit, or it is above what the gate was made for.
        """
        if not self._group_size <= episodes <= self._max_concurrent:
            raise ValueError(
                f"expected a limit from {self._group_size} to {self._max_concurrent} episodes, "
                f"got {episodes}"
            )
        self._limit = episodes
        self._changed.set()

    @property
    def held_by_limit(self) -> bool:
        """Whether a lowered limit alone keeps a group from starting."""
        places = self._max_concurrent - self.running_episodes
        return self.episode_places < self._group_size <= places and self.groups_ahead > 0

    @property
    def episode_places(self) -> int:
        """How many more episodes may be in flight; negative when the limit was lowered below."""
        return self._limit - self.running_episodes

    @property
    def capacity(self) -> int:
        """How many more groups may start now; negative when there are too many."""
        return min(self.episode_places // self._group_size, self.groups_ahead)

    async def admit(self) -> None:
        """Wait for a place and take it: a group of episodes now counts as running."""
        while self.paused or self.capacity <= 0:
            self._changed.clear()
            await self._changed.wait()
        self.running_groups += 1
        self.running_episodes += self._group_size
        if self._active_since is None:
            self._active_since = self._clock()

    def episode_done(self) -> None:
        """Give back one episode's place."""
        self.running_episodes = self._lowered(self.running_episodes, "running episode")
        if self.running_episodes == 0 and self._active_since is not None:
            self._active.append((self._active_since, self._clock()))
            self._active_since = None

    def accept(self) -> None:
        """A running group is finished and may be trained on."""
        self.running_groups = self._lowered(self.running_groups, "running group")
        self.accepted += 1

    def reject(self) -> None:
        """A running group is finished and will not be trained on: its place is free again."""
        self.running_groups = self._lowered(self.running_groups, "running group")

    def sweep(self) -> None:
        """An accepted group was too old at consumption: its place is free again."""
        self.accepted = self._lowered(self.accepted, "accepted group")

    def advance(self, version: int) -> None:
        """New weights are served: more may start.

        Raises:
            ValueError: versions only grow.
        """
        if version < self.version:
            raise ValueError(f"expected a version of {self.version} or more, got {version}")
        self.version = version
        self._changed.set()

    def recover(self, version: int) -> None:
        """Go on at `version` as if each step up to it had consumed one full batch."""
        self.version = version
        self.accepted = version * self._batch_size
        self._changed.set()

    def pause(self) -> None:
        """Admit nothing until `resume`; what runs goes on."""
        self.paused = True

    def resume(self) -> None:
        """Admit again."""
        self.paused = False
        self._changed.set()

    def _lowered(self, count: int, what: str) -> int:
        if count <= 0:
            raise RuntimeError(f"the gate has no {what} to give back: it was counted twice")
        self._changed.set()
        return count - 1
