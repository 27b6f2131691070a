"""One prompt, one reply, one reward: reinforcement learning with verifiable rewards."""

from typing import Any

from areal_agent import (
    GenerationHyperparameters,
    GroupReward,
    InferenceEngine,
    ModelRequest,
    RolloutWorkflow,
    Trajectory,
)
from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import row_messages

from .rewards import RewardFunction, Scorer


class RLVRWorkflow(RolloutWorkflow):
    """Ask once and let `reward_fn` judge the reply, also one that was cut off for length.

    A row has ``messages`` and whatever the reward function names. A prompt that fills
    ``gconfig.max_tokens`` is rejected.
    """

    def __init__(
        self,
        reward_fn: RewardFunction,
        gconfig: GenerationHyperparameters,
        chat: ChatFormat,
        *,
        none_rejects: bool = False,
        group_reward: GroupReward | None = None,
    ) -> None:
        """Take what an episode needs.

        Args:
            reward_fn: judges the reply.
            gconfig: sampling; ``max_tokens`` bounds prompt and reply.
            chat: writes messages as tokens.
            none_rejects: `reward_fn` may return None, which rejects the episode.
            group_reward: judges the members of a group against each other, in training.
        """
        self.gconfig = gconfig.new(n_samples=1)
        self.chat = chat
        self.score = Scorer(reward_fn, chat, none_rejects=none_rejects)
        self.group_reward = group_reward

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> Trajectory | None:
        """Run one episode."""
        messages = row_messages(data)
        prompt_ids = self.chat.prompt_ids(messages)
        if len(prompt_ids) >= self.gconfig.max_tokens:
            return None
        response = await engine.agenerate(
            ModelRequest(prompt_ids, self.gconfig, metadata={"messages": messages})
        )
        scored = await self.score(response, data)
        if scored is None:
            return None
        return Trajectory.from_response(response, scored.reward, metrics=scored.metrics)
