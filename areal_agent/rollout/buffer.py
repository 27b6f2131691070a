"""Finished groups that wait for the trainer, and the budgets that end a run that gets nowhere."""

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from areal_agent.errors import RolloutError
from areal_agent.rollout.grouped import GroupRun
from areal_agent.trajectory import TrajectoryGroup
from areal_agent.types import TRAINABLE_OUTCOMES, Episode, Failure, PromptId


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


class Budget:
    """Counts failures in a row and empty groups in a row; says when it is enough, and why."""

    def __init__(self, *, max_consecutive_failures: int, max_empty_groups: int) -> None:
        self._max_failures = max_consecutive_failures
        self._max_empty = max_empty_groups
        self.failures = 0
        """Episodes in a row that failed."""
        self.empty_groups = 0
        """Groups in a row that gave nothing to train on."""
        self._causes: Counter[str] = Counter()
        self._examples: dict[str, Failure] = {}

    def episode(self, episode: Episode) -> None:
        """Count one episode."""
        if episode.failure is None:
            self.failures = 0
            if episode.outcome not in TRAINABLE_OUTCOMES:
                self._causes["episodes were rejected: arun_episode returned None"] += 1
            return
        self.failures += 1
        cause = f"{episode.outcome}: {episode.failure.type}"
        self._causes[cause] += 1
        self._examples.setdefault(cause, episode.failure)

    def empty(self, reason: str = "", failure: Failure | None = None) -> None:
        """Count a group without use; `reason` when its episodes do not say why."""
        self.empty_groups += 1
        if failure is not None:
            cause = f"{reason}: {failure.type}"
            self._causes[cause] += 1
            self._examples.setdefault(cause, failure)
        elif reason:
            self._causes[reason] += 1

    def usable(self) -> None:
        """Count a group that may be trained on: everything starts anew."""
        self.empty_groups = 0
        if self._causes and self.failures == 0:
            self._causes.clear()
            self._examples.clear()

    def verdict(self) -> RolloutError | None:
        """Return the error that ends the run, once a budget is used up."""
        if self.failures >= self._max_failures:
            head = (
                f"{self.failures} episodes in a row failed "
                f"(rollout.max_consecutive_failures {self._max_failures})"
            )
        elif self.empty_groups >= self._max_empty:
            head = (
                f"{self.empty_groups} groups in a row gave nothing to train on "
                "(rollout.max_empty_rounds batches' worth)"
            )
        else:
            return None
        return self.error(head)

    def error(self, head: str) -> RolloutError:
        """Return an error that opens with `head` and names the commonest cause."""
        if not self._causes:
            return RolloutError(f"{head}; no cause was recorded")
        cause, times = self._causes.most_common(1)[0]
        text = f"{head}; the commonest cause, {times} times: {cause}"
        if cause in self._examples:
            example = self._examples[cause]
            text += f": {example.message}\n{example.traceback}".rstrip()
        return RolloutError(text)
