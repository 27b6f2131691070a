"""How much may go wrong in a row before the run ends, and what went wrong most often."""

from collections import Counter

from areal_agent.errors import RolloutError
from areal_agent.rollout.filters import Refusal
from areal_agent.types import Episode, Failure


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

    def episode(self, episode: Episode, *, is_tried_again: bool = False) -> None:
        """Count one episode.

        One that was cancelled and `is_tried_again` says nothing yet: many may be cancelled at once.
        """
        if episode.failure is None:
            self.failures = 0
            if episode.limit is not None and episode.outcome == "rejected":
                self._causes[f"episodes were rejected at rollout.limits.{episode.limit}"] += 1
            elif episode.outcome == "rejected":
                self._causes["episodes were rejected: arun_episode returned None or nothing"] += 1
            return
        if not (is_tried_again and episode.outcome == "cancelled"):
            self.failures += 1
        cause = f"{episode.outcome}: {episode.failure.type}"
        self._causes[cause] += 1
        self._examples.setdefault(cause, episode.failure)

    def empty(self, refusal: Refusal | None = None) -> None:
        """Count a group without use; without a `refusal` its episodes say why."""
        self.empty_groups += 1
        if refusal is None:
            return
        cause = refusal.cause
        if refusal.failure is not None:
            cause = f"{cause}: {refusal.failure.type}"
            self._examples.setdefault(cause, refusal.failure)
        self._causes[cause] += 1

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
