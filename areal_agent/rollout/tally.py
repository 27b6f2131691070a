"""What became of the episodes and groups of a run, in numbers; new kinds of failure are told."""

import logging
from collections import Counter

from areal_agent.rollout.episode import EpisodeRun
from areal_agent.types import Episode, Failure

logger = logging.getLogger(__name__)


class Tally:
    """Counts since the start."""

    def __init__(self) -> None:
        self.groups: Counter[str] = Counter()
        """``accepted``, ``consumed``, ``swept`` and ``dropped`` groups."""
        self.episodes = 0
        """Episodes that ended."""
        self.output_tokens = 0
        """Tokens that they sampled."""
        self.outcomes: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def ended(self, run: EpisodeRun) -> None:
        """Count an episode."""
        episode = run.episode
        self.episodes += 1
        self.output_tokens += run.output_tokens
        self.outcomes[episode.outcome] += 1
        if episode.failure is not None:
            self._tell(episode, episode.failure)

    def _tell(self, episode: Episode, failure: Failure) -> None:
        """Warn of the first failure of each kind; all are counted and recorded."""
        kind = f"{episode.outcome} {failure.type}"
        self._failures[kind] += 1
        logger.log(
            logging.WARNING if self._failures[kind] == 1 else logging.DEBUG,
            "episode %s ended as %s: %s: %s (more of this kind are counted, not told)",
            episode.id,
            episode.outcome,
            failure.type,
            failure.message,
        )
