"""Try again: a wrong reply is answered with feedback, and a later success is worth less."""

from typing import Any

from areal_agent import GenerationHyperparameters, InferenceEngine, RolloutWorkflow, Trajectory
from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import row_messages
from areal_agent.errors import ConfigError

from .rewards import RewardFunction, Scorer
from .turns import Dialogue

FEEDBACK = "Your answer is not correct. Look for the mistake and answer again."


class MultiTurnWorkflow(RolloutWorkflow):
    """Ask until the reward is above 0, at most `max_turns` times.

    All tries are one row and share the last one's reward, times `turn_discount` for each try
    before it. A try that is cut off for length is the last one.
    """

    def __init__(
        self,
        reward_fn: RewardFunction,
        gconfig: GenerationHyperparameters,
        chat: ChatFormat,
        *,
        max_turns: int = 3,
        turn_discount: float = 1.0,
        feedback: str = FEEDBACK,
        none_rejects: bool = False,
    ) -> None:
        """Take what an episode needs.

        Args:
            reward_fn: judges each reply.
            gconfig: sampling of each reply; ``max_tokens`` bounds the whole dialogue.
            chat: writes messages as tokens.
            max_turns: most replies.
            turn_discount: what remains of the reward for each failed try.
            feedback: the user's message after a wrong reply.
            none_rejects: `reward_fn` may return None, which rejects the episode.

        Raises:
            ConfigError: a number is out of range.
        """
        if max_turns < 1:
            raise ConfigError(f"expected max_turns of at least 1, got {max_turns}")
        if not 0 < turn_discount <= 1:
            raise ConfigError(f"expected turn_discount above 0 and at most 1, got {turn_discount}")
        self.gconfig = gconfig.new(n_samples=1)
        self.chat = chat
        self.score = Scorer(reward_fn, chat, none_rejects=none_rejects)
        self.max_turns = max_turns
        self.turn_discount = turn_discount
        self.feedback = feedback

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> Trajectory | None:
        """Run one episode."""
        dialogue = Dialogue(self.chat, self.gconfig, row_messages(data))
        if not dialogue.has_room:
            return None
        while True:
            response = await dialogue.ask(engine)
            scored = await self.score(response, data)
            if scored is None:
                return None
            if scored.reward > 0 or dialogue.is_over(self.max_turns):
                break
            dialogue.extend([{"role": "user", "content": self.feedback}])
            if not dialogue.has_room:
                break
        turns = len(dialogue.responses)
        reward = scored.reward * self.turn_discount ** (turns - 1)
        return dialogue.trajectory(reward, metrics={"turns": turns, **scored.metrics})
