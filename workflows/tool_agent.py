"""An agent with tools: Python functions that the model may call until it gives its answer."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from areal_agent import (
    GenerationHyperparameters,
    InferenceEngine,
    RolloutWorkflow,
    Trajectory,
    workflow_context,
)
from areal_agent.aio import collect
from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import Message, row_messages
from areal_agent.data.tools import tool_schema
from areal_agent.errors import ConfigError

from .rewards import RewardFunction, Scorer
from .turns import Dialogue

Tool = Callable[..., Any]
"""A function, plain or async, with type hints and a docstring; what it returns is shown as text."""


class ToolAgentWorkflow(RolloutWorkflow):
    """Let the model call tools until it answers, then let `reward_fn` judge the answer.

    The calls of a reply run at once; each result comes back as a tool message. A tool that fails
    or does not exist, or arguments that do not fit, are a message to the model, not the end of the
    episode. Plain functions run in a thread, so they may block. A reply with a malformed call is
    plain text, and so an answer. Tools' text is never trained on.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        reward_fn: RewardFunction,
        gconfig: GenerationHyperparameters,
        chat: ChatFormat,
        *,
        max_turns: int = 8,
        tool_timeout_seconds: float = 60.0,
        none_rejects: bool = False,
    ) -> None:
        """Take what an episode needs.

        Args:
            tools: functions that the model may call, each by its ``__name__``.
            reward_fn: judges the last reply.
            gconfig: sampling of each reply; ``max_tokens`` bounds the whole dialogue.
            chat: writes messages as tokens and reads calls from replies.
            max_turns: most replies, the answer included.
            tool_timeout_seconds: a call that takes longer is a failure told to the model.
            none_rejects: `reward_fn` may return None, which rejects the episode.

        Raises:
            ConfigError: a number is out of range, or two tools share a name.
            DataError: a tool has no type hints or docstring.
        """
        if max_turns < 1 or tool_timeout_seconds <= 0:
            raise ConfigError(
                "expected max_turns of at least 1 and tool_timeout_seconds above 0, got "
                f"{max_turns} and {tool_timeout_seconds}"
            )
        self.schemas = [tool_schema(tool) for tool in tools]
        self.tools = {tool.__name__: tool for tool in tools}
        if len(self.tools) != len(tools):
            raise ConfigError(
                f"expected tools of different names, got {[tool.__name__ for tool in tools]}"
            )
        self.gconfig = gconfig.new(n_samples=1)
        self.chat = chat
        self.score = Scorer(reward_fn, chat, none_rejects=none_rejects)
        self.max_turns = max_turns
        self.tool_timeout_seconds = tool_timeout_seconds

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> Trajectory | None:
        """Run one episode."""
        dialogue = Dialogue(self.chat, self.gconfig, row_messages(data), self.schemas)
        if not dialogue.has_room:
            return None
        n_calls = n_failed = 0
        while True:
            response = await dialogue.ask(engine)
            calls: list[dict[str, Any]] = dialogue.reply.get("tool_calls", [])
            if not calls or dialogue.is_over(self.max_turns):
                break
            results = await collect(self._run_call(call) for call in calls)
            n_calls += len(calls)
            n_failed += sum(not succeeded for _, succeeded in results)
            dialogue.extend([message for message, _ in results])
            if not dialogue.has_room:
                break
        scored = await self.score(response, data, cut_off=not dialogue.has_room)
        if scored is None:
            return None
        return dialogue.trajectory(
            scored.reward,
            metrics={
                **scored.metrics,
                "turns": len(dialogue.responses),
                "tool_calls": n_calls,
                "tool_failures": n_failed,
                "malformed_calls": dialogue.n_malformed_calls,
            },
        )

    async def _run_call(self, call: dict[str, Any]) -> tuple[Message, bool]:
        """The tool message that answers a call, and whether the tool did its work."""
        function = call["function"]
        try:
            content, succeeded = await self._result(function["name"], function["arguments"]), True
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is told to the model
            content, succeeded = f"{type(error).__name__}: {error}", False
        message = {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": function["name"],
            "content": content,
        }
        return message, succeeded

    async def _result(self, name: str, arguments: str) -> str:
        if name not in self.tools:
            raise LookupError(f"there is no tool {name!r}, only {', '.join(self.tools)}")
        tool, kwargs = self.tools[name], json.loads(arguments)
        result = await workflow_context.call_tool(
            tool, kwargs=kwargs, timeout_seconds=self.tool_timeout_seconds
        )
        return result if isinstance(result, str) else json.dumps(result, default=str)
