"""Finished groups that wait for the trainer."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from areal_agent.rollout.grouped import GroupRun
from areal_agent.trajectory import TrajectoryGroup
from areal_agent.types import PromptId


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One prompt to run: which occurrence of it, and the dataset row."""

    order: int
    """Place in the order of issue; kept when the prompt is issued again."""
    prompt_id: PromptId
    epoch: int
    index: int
    data: Mapping[str, Any]
    attempt: int = 0
    """How often it was swept and issued again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A group that may be trained on."""

    item: PromptItem
    run: GroupRun
    group: TrajectoryGroup
    at: float
    """``time.time()`` when it was finished."""

    def age(self, version: int) -> int:
        """How many versions its oldest trained token is behind `version`."""
        return version - self.group.oldest_version


class GroupBuffer:
    """Finished groups; those that were issued first come out first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Finished]] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._heap)

    def put(self, finished: Finished) -> None:
        """Add a group."""
        heapq.heappush(self._heap, (finished.item.order, finished))

    def take(self, n: int) -> list[Finished]:
        """Remove up to `n` groups, earliest issued first."""
        return [heapq.heappop(self._heap)[1] for _ in range(min(n, len(self._heap)))]

    def sweep(self, version: int, max_age: int) -> list[Finished]:
        """Remove the groups that are older than `max_age` at `version`."""
        old = [f for _, f in self._heap if f.age(version) > max_age]
        if old:
            self._heap = [entry for entry in self._heap if entry[1].age(version) <= max_age]
            heapq.heapify(self._heap)
        return old
