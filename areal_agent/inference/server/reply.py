"""Text of a reply, whole or as it grows, and the counts that go with it."""

from typing import Any

from areal_agent.inference.engine.detokenize import Decode, StopMatcher
from areal_agent.inference.engine.request import Generation, SamplingParams
from areal_agent.inference.server.state import ServerState


class StreamedText:
    """Text of a reply as it grows: whole characters, nothing of a stop string or a stop id."""

    def __init__(self, decode: Decode, params: SamplingParams) -> None:
        self._matcher = StopMatcher(decode, params.stop)
        self._stops = params.stop
        self._stop_ids = params.stop_ids

    def push(self, ids: list[int]) -> str:
        """Add tokens; return the text that became certain."""
        kept = [token for token in ids if token not in self._stop_ids]
        if not self._stops:
            self._matcher.push(*kept)  # many at once cost what one does
        else:
            for token in kept:  # as the engine does: the first to be complete counts
                self._matcher.push(token)
        return self._matcher.take()

    def rest(self) -> str:
        """Return what was held back; the reply has ended."""
        return self._matcher.take_rest()


def reply_text(state: ServerState, generation: Generation) -> str:
    """Text of a reply without what ended it."""
    if generation.stop_string is not None:
        return generation.text or ""
    ids = generation.token_ids
    return state.decode(ids[:-1] if generation.finish_reason == "stop" else ids)


def usage(prompt: list[int], found: list[Generation]) -> dict[str, Any]:
    """Counts of tokens, as OpenAI reports them."""
    sampled = sum(len(g.token_ids) for g in found)
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": sampled,
        "total_tokens": len(prompt) + sampled,
        "prompt_tokens_details": {"cached_tokens": max(g.cached_tokens for g in found)},
    }
