"""What a client is told of a reply: its text or its calls, and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_agent.data.chat import ChatFormat
from areal_agent.data.json_schema import fits
from areal_agent.data.messages import Message, Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolCall
from areal_agent.inference.engine.detokenize import StopMatcher
from areal_agent.types import GenerationHyperparameters, ModelResponse, StopReason


@dataclass(frozen=True, slots=True)
class Reply:
    """One assistant message."""

    message: Message
    """`content` is text, also when it is empty; ``reasoning_content`` stands apart."""
    finish_reason: StopReason
    stop_string: str | None = None
    """The stop string that it ended at."""
    has_malformed_call: bool = False
    """It looks like a call, but is none that can be run."""


class ReplyText:
    """Text of a reply as it grows: whole characters, nothing of a stop string or a stop token."""

    def __init__(self, chat: ChatFormat, gconfig: GenerationHyperparameters) -> None:
        ends = frozenset() if gconfig.ignore_eos else chat.eos_token_ids
        self._ends = ends | frozenset(gconfig.stop_token_ids)
        self._decode = chat.replies.visible
        self._stop = gconfig.stop
        self._matcher = StopMatcher(chat.replies.visible, gconfig.stop)

    def whole(self, ids: Sequence[int]) -> str:
        """Return the text of a reply that is all there; to be called once, instead of `push`."""
        if not self._stop:
            return self._decode([token for token in ids if token not in self._ends])
        return self.push(ids) + self.rest()

    def push(self, ids: Sequence[int]) -> str:
        """Add tokens; return the text that became certain."""
        for token in ids:
            if token not in self._ends:
                self._matcher.push(token)
        return self._matcher.take()

    def rest(self) -> str:
        """Return what was held back; the reply has ended."""
        return self._matcher.take_rest()

    @property
    def stop_string(self) -> str | None:
        """The stop string that was met."""
        return self._matcher.matched


def read_reply(
    chat: ChatFormat,
    gconfig: GenerationHyperparameters,
    response: ModelResponse,
    *,
    tools: Tools,
    prompt_ids: Sequence[int] | None = None,
) -> Reply:
    """Turn sampled tokens into the message that the client gets.

    Calls are read only where tools were offered, and only from a reply that ended by itself; a
    malformed call is text, and so is one whose arguments a strict tool does not allow. Without
    `prompt_ids` the reply continues a text that is no dialogue: all of it is text.
    """
    text = ReplyText(chat, gconfig)
    content = text.whole(response.output_tokens)
    if prompt_ids is None:
        parsed = ParsedReply(content)
    else:
        opened = chat.opens_reasoning(prompt_ids)
        ended = text.stop_string is None and response.stop_reason == "stop"
        may_call = tools is not None and ended
        parsed = chat.replies.read(content, tools, opened=opened, may_call=may_call)
        strict = _strict(tools or [])
        if any(not _fits(call, strict) for call in parsed.calls):
            plain = chat.replies.read(content, tools, opened=opened, may_call=False)
            parsed = replace(plain, is_malformed=True)
        if parsed.is_malformed:
            chat.note_malformed(content)
    reason = "tool_calls" if parsed.calls else response.stop_reason
    return Reply(chat.message_of(parsed), reason, text.stop_string, parsed.is_malformed)


def _strict(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The schemas of the tools that want their arguments to fit."""
    functions = [tool["function"] for tool in tools]
    return {f["name"]: f.get("parameters", True) for f in functions if f.get("strict")}


def _fits(call: ToolCall, schemas: dict[str, Any]) -> bool:
    try:
        return fits(call.arguments, schemas.get(call.name, True))
    except RecursionError:  # nested without end, in the schema or in the arguments
        return False
