"""The example's agent with a backend that fails at random, and what careless code makes of it."""

from typing import Any, Literal

from areal_agent.workflows.tool_agent import ToolAgentWorkflow

from areal_agent import InferenceEngine, Trajectory, workflow_context
from areal_agent.data.chat import ChatFormat
from areal_agent.data.seeds import derive_seed
from areal_agent.errors import ServerError
from areal_agent.types import GenerationHyperparameters


class FailingToolAgent(ToolAgentWorkflow):
    """A share of its training episodes fails, whatever the model did.

    With `failed` as ``typed``, the failure is raised, as a backend does. As ``zero``, it becomes a
    reward of 0, as in code that fills in a number where there is none.
    """

    def __init__(
        self,
        tools: list[Any],
        reward_fn: Any,
        gconfig: GenerationHyperparameters,
        chat: ChatFormat,
        *,
        max_turns: int,
        share: float,
        failed: Literal["typed", "zero"],
    ) -> None:
        super().__init__(tools, reward_fn, gconfig, chat, max_turns=max_turns)
        self._share = share
        self._failed = failed

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> Trajectory | None:
        row = await super().arun_episode(engine, data)
        episode = workflow_context.get()
        die = derive_seed("fails", episode.episode_id or "") % 10**6 / 10**6
        if row is None or episode.is_eval or die >= self._share:
            return row
        if self._failed == "typed":
            raise ServerError("the server failed, as the experiment wants")
        row.reward = 0.0
        return row
