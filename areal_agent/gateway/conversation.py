"""The turns of one session as a forest: which captured turn does a new request go on from?

A turn is one sampled reply with the tokens before it. A request goes on from a turn when its
messages begin with the turn's messages and reply; then its prompt is the turn's tokens, the reply's
tokens as they were sampled, and only the rest rendered anew. Otherwise it starts a tree of its own.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import Message, Tools, clean_messages
from areal_agent.errors import DataError
from areal_agent.gateway.messages import call_ids, chain_keys
from areal_agent.types import ModelResponse

Break = Literal["tools", "history", "template"]
"""Why a request that looks like a later turn did not go on from an earlier one: other tools, a
history that no captured turn has, or a template that writes earlier messages differently."""


_THOUGHT = "reasoning_content"


@dataclass(slots=True, eq=False)
class Turn:
    """One sampled reply."""

    id: str
    parent: "Turn | None"
    messages: Sequence[Message]
    """What was sent, in plain form."""
    tools: Tools
    reply: Message
    """The assistant message that the client was given."""
    response: ModelResponse
    delivered: bool = False
    """Whether the client received it whole. If not, it is not trained on."""
    key: bytes = b""
    """Stands for the messages."""
    text: str | None = None
    """What a text prompt begins with that goes on behind the reply; None if none can."""
    reward: float | None = None
    children: "list[Turn]" = field(default_factory=list["Turn"])

    @property
    def dialogue(self) -> list[Message]:
        """What was sent and the reply, with the reasoning of all captured replies in it."""
        said = [*self.messages, self.reply]
        turn = self.parent
        while turn is not None:
            said[len(turn.messages)] = turn.reply
            turn = turn.parent
        return said

    def thought_so(self, messages: Sequence[Message]) -> bool:
        """Tell whether reasoning that a client sends back, which it need not, is what was there."""
        thoughts = [message.get(_THOUGHT, "").strip() for message in messages]
        if not any(thoughts):
            return True
        known = [message.get(_THOUGHT, "").strip() for message in self.dialogue]
        return all(one in ("", other) for one, other in zip(thoughts, known, strict=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request is put to the engine."""

    prompt_ids: list[int]
    parent: Turn | None
    broke: Break | None = None
    key: bytes = b""
    """Stands for the messages."""


class Conversation:
    """All turns of one session."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._by_key: dict[bytes, list[Turn]] = {}
        """Turns by the key of their messages and reply, whatever their tools."""
        self.turns: list[Turn] = []
        """In the order in which they were finished."""
        self.counts: Counter[str] = Counter()
        """``turns``, ``prefix_hits``, ``forks``, and ``breaks/`` with the reason."""

    def plan(self, messages: Sequence[Message], tools: Tools) -> Plan:
        """Find what a request goes on from, and make its prompt.

        Raises:
            DataError: the template refuses the messages.
        """
        keys = chain_keys(messages)
        broke: Break | None
        for n in range(len(messages) - 1, 0, -1):
            said = [
                turn
                for turn in self._by_key.get(keys[n], ())
                if turn.tools == tools and turn.thought_so(messages[:n])
            ]
            if not said:
                continue
            parent = self._same_calls(said, messages[n - 1])
            try:
                ids = self._extended(parent, messages[n:], tools)
            except DataError:
                broke = "template"
                break
            return Plan(ids, _received(parent), key=keys[-1])
        else:
            broke = self._why_not(messages, keys)
        if broke is not None:
            self.counts[f"breaks/{broke}"] += 1
        return Plan(self._chat.prompt_ids(list(messages), tools), None, broke, keys[-1])

    def plan_prompt(self, prompt: str | list[int]) -> Plan:
        """Find what a prompt without messages goes on from: the longest turn that it begins with.

        Text begins with a turn when it begins with the turn's own text: prompt and reply, a stop
        string included. The reply's tokens then stay as they were sampled.
        """
        if isinstance(prompt, str):
            texts = [t for t in self.turns if t.text is not None and prompt.startswith(t.text)]
            if not texts:
                return Plan(list(self._chat.tokenizer.encode(prompt)), None)
            parent = max(texts, key=lambda t: (len(t.text or ""), t.delivered))
            rest = self._encode(prompt[len(parent.text or "") :])
            return Plan([*_tokens(parent), *rest], _received(parent))
        begun = [t for t in self.turns if prompt[: len(ids := _tokens(t))] == ids]
        parent = max(begun, key=lambda t: (len(_tokens(t)), t.delivered), default=None)
        return Plan(prompt, None if parent is None else _received(parent))

    def add(self, turn: Turn) -> None:
        """Keep a finished turn."""
        self._index(turn)
        self.turns.append(turn)
        self.counts["turns"] += 1
        if turn.parent is not None:
            self.counts["prefix_hits"] += 1
            self.counts["forks"] += bool(turn.parent.children)
            turn.parent.children.append(turn)

    def _index(self, turn: Turn) -> None:
        """Let later messages find it."""
        if not turn.messages:
            return
        reply = clean_messages([turn.reply])  # as it will look when the client sends it back
        key = chain_keys(reply, turn.key)[-1]
        self._by_key.setdefault(key, []).append(turn)

    def _encode(self, text: str) -> list[int]:
        return list(self._chat.tokenizer.encode(text, add_special_tokens=False))

    def _extended(self, parent: Turn, new: Sequence[Message], tools: Tools) -> list[int]:
        self._chat.check_reasoning(parent.dialogue, list(new), tools)
        output = list(parent.response.output_tokens)
        closed = bool(output) and output[-1] in self._chat.eos_token_ids
        rest = self._chat.continuation_ids(list(parent.messages), list(new), tools, closed=closed)
        return [*parent.response.input_tokens, *output, *rest]

    def _why_not(self, messages: Sequence[Message], keys: Sequence[bytes]) -> Break | None:
        """Tell a later turn that lost its history, if it did, from a dialogue that starts."""
        if not self.turns or all(message["role"] != "assistant" for message in messages):
            return None
        heard = (
            turn.thought_so(messages[:n])
            for n, key in enumerate(keys[:-1])
            for turn in self._by_key.get(key, ())
        )
        return "tools" if any(heard) else "history"

    @staticmethod
    def _same_calls(turns: list[Turn], reply: Message) -> Turn:
        """Of turns that said the same, the newest that the client received, by the ids of calls."""
        ids = call_ids(reply)
        return max(reversed(turns), key=lambda t: (call_ids(t.reply) == ids, t.delivered))


def _tokens(turn: Turn) -> list[int]:
    return [*turn.response.input_tokens, *turn.response.output_tokens]


def _received(turn: Turn) -> Turn:
    """A turn that a client goes on from: it has received it, or could not send it back."""
    turn.delivered = True
    return turn
