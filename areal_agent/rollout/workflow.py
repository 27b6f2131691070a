"""What users implement: one episode."""

from abc import ABC, abstractmethod
from typing import Any

from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.group_reward import GroupReward
from areal_agent.rollout.results import EpisodeResult


class RolloutWorkflow(ABC):
    """One episode of an agent: ask the engine for tokens, act on them, say what it was worth.

    An instance is shared by all concurrent episodes: keep an episode's state in local variables.
    """

    group_reward: GroupReward | None = None
    """Judges the episodes of one prompt together, once all have ended. In training only."""

    @abstractmethod
    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> EpisodeResult:
        """Run one episode on one problem.

        Args:
            engine: samples tokens; `engine.agenerate(ModelRequest(...))`.
            data: this episode's own copy of the dataset row.

        Returns:
            A `Trajectory`, a list of them, a tensor dict, a dict of `Interaction`s, or None to
            reject the episode.
        """

    def waits_for(self) -> str:
        """Say what its episodes wait for that is no part of the run, for the display."""
        return ""
