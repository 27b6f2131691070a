"""What became of the episodes and groups of a run, in numbers; new kinds of failure are told."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import get_args

from areal_agent.rollout.episode import EpisodeRun
from areal_agent.types import Episode, Failure, Outcome

logger = logging.getLogger(__name__)


class Tally:
    """Counts since the start.

    An episode is counted twice: when it has ended, and when it is settled, which says what its
    outcome is. Those that may be trained on are settled when their group is consumed, dropped or
    swept; the others at once.
    """

    def __init__(self) -> None:
        self.groups: Counter[str] = Counter()
        """``accepted``, ``consumed``, ``swept`` and ``dropped`` groups."""
        self.dropped: Counter[str] = Counter()
        """Dropped groups by the reason, a word."""
        self.episodes = 0
        """Episodes that ended, each try by itself."""
        self.retries = 0
        """Those of them that were run before and failed."""
        self.output_tokens = 0
        """Tokens that they sampled."""
        self.zero_rewards = 0
        """Episodes that ended well and earned nothing."""
        self.outcomes: Counter[str] = Counter()
        """Settled episodes by outcome."""
        self.limits: Counter[str] = Counter()
        """Episodes by the limit that they hit."""
        self._failures: Counter[str] = Counter()
        self._told: dict[str, float] = {}

    def ended(self, run: EpisodeRun) -> None:
        """Count an episode."""
        episode = run.episode
        self.episodes += 1
        self.retries += run.attempt > 0
        self.output_tokens += run.output_tokens
        if episode.limit is not None:
            self.limits[episode.limit] += 1
        if episode.failure is not None:
            self._tell(episode, episode.failure)

    def settled(self, episode: Episode, *, is_stale: bool = False) -> None:
        """Count its outcome, which is final: one that ended well may have become stale since."""
        self.outcomes["stale" if is_stale else episode.outcome] += 1
        if episode.reward is not None and episode.reward <= 0:
            self.zero_rewards += 1

    def drop(self, reason: str) -> None:
        """Count a group that is not trained on."""
        self.groups["dropped"] += 1
        self.dropped[reason] += 1

    def take_metrics(self) -> dict[str, float]:
        """What was counted since the last call: episodes by outcome, groups by what became of them.

        Every outcome is there; reasons and limits only once they have occurred.
        """
        now: dict[str, float] = {
            **_named("outcome", {name: self.outcomes[name] for name in get_args(Outcome)}),
            **_named("dropped", self.dropped),
            **_named("limit", self.limits),
            "rollout/swept": self.groups["swept"],
            "rollout/retries": self.retries,
            "rollout/zero_rewards": self.zero_rewards,
        }
        new = {name: value - self._told.get(name, 0) for name, value in now.items()}
        self._told = now
        return new

    def _tell(self, episode: Episode, failure: Failure) -> None:
        """Warn of the first failure of each kind; all are counted and recorded."""
        kind = f"{episode.outcome} {failure.type}"
        self._failures[kind] += 1
        first = self._failures[kind] == 1 and episode.outcome != "cancelled"
        logger.log(
            logging.WARNING if first else logging.DEBUG,
            "episode %s ended as %s: %s: %s (more of this kind are counted, not told)",
            episode.id,
            episode.outcome,
            failure.type,
            failure.message,
        )


def _named(kind: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f"rollout/{kind}/{name}": count for name, count in counts.items()}
