"""A dialogue that grows by tokens: what workflows of several turns have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from areal_agent import (
    GenerationHyperparameters,
    InferenceEngine,
    ModelRequest,
    ModelResponse,
    Trajectory,
)
from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import Message, Tools


class Dialogue:
    """The messages of one episode and the very tokens that were sent and sampled for them."""

    def __init__(
        self,
        chat: ChatFormat,
        gconfig: GenerationHyperparameters,
        messages: Sequence[Message],
        tools: Tools = None,
    ) -> None:
        self._chat = chat
        self._gconfig = gconfig
        self._tools = tools
        self._rid = uuid4().hex
        self._ids = chat.prompt_ids(messages, tools)
        self.messages = list(messages)
        """Everything said so far."""
        self.responses: list[ModelResponse] = []
        """The replies, as tokens."""
        self.n_malformed_calls = 0
        """Replies that look like calls but are none that can be run; they count as text."""
        self.reply: Message = {}
        """The last one as an assistant message; its calls have ids that tool messages name."""

    @property
    def has_room(self) -> bool:
        """Whether the next prompt leaves tokens for a reply."""
        return len(self._ids) < self._gconfig.max_tokens

    def is_over(self, max_turns: int) -> bool:
        """Whether the last reply was cut off, or is the last that is allowed."""
        return self.responses[-1].stop_reason == "length" or len(self.responses) >= max_turns

    async def ask(self, engine: InferenceEngine) -> ModelResponse:
        """Sample the next reply. All turns go to one replica, whose cache knows the prefix."""
        request = ModelRequest(
            self._ids, self._gconfig, rid=self._rid, metadata={"messages": list(self.messages)}
        )
        response = await engine.agenerate(request)
        self.responses.append(response)
        parsed = self._chat.parse(response.output_tokens, self._tools, prompt_ids=self._ids)
        self.reply = self._chat.message_of(parsed)
        self.n_malformed_calls += parsed.is_malformed
        return response

    def extend(self, new_messages: Sequence[Message]) -> None:
        """Append the last reply and what follows it; sampled tokens stay as they are."""
        output = list(self.responses[-1].output_tokens)
        closed = bool(output) and output[-1] in self._chat.eos_token_ids
        self._ids = [
            *self._ids,
            *output,
            *self._chat.continuation_ids(self.messages, new_messages, self._tools, closed=closed),
        ]
        self.messages += [self.reply, *new_messages]

    def trajectory(self, reward: float, *, metrics: Mapping[str, float]) -> Trajectory:
        """One row of all turns; truncated as well when the next prompt found no room."""
        row = Trajectory.from_turns(self.responses, reward, metrics=metrics)
        return row if self.has_room else replace(row, truncated=True)
