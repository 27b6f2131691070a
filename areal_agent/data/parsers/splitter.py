"""A reply's text as it grows, cut into reasoning and content; what may be a call is held back."""

from typing import Literal, NamedTuple

from areal_agent.data.parsers.calls import ToolParser
from areal_agent.data.parsers.reasoning import Reasoning


class Piece(NamedTuple):
    """What became certain."""

    reasoning: str = ""
    content: str = ""


class ReplySplitter:
    """Gives out text that belongs to the reply whatever comes after it.

    All pieces together are the reply's reasoning and content, to the letter.
    """

    def __init__(
        self, reasoning: Reasoning | None, parser: ToolParser | None, *, opened: bool
    ) -> None:
        """Begin a reply.

        Args:
            reasoning: how the model thinks; None when it does not.
            parser: how it calls; None when it may not.
            opened: the prompt opened the reasoning.
        """
        self._reasoning = reasoning
        self._markers = parser.markers if parser is not None else ()
        self._starts = parser.starts if parser is not None else ()
        self._may_call = bool(self._markers or self._starts)
        self._opened = opened
        self._phase: Literal["start", "thought", "content", "call"] = (
            "content" if reasoning is None else "start"
        )
        self._held = ""
        self._skips_space = False
        self._n_content = 0
        self._n_reasoning = 0

    def push(self, text: str) -> Piece:
        """Add text; return what became certain."""
        if not text:
            return Piece()
        self._held += text
        thought = ""
        if self._reasoning is not None and self._phase in ("start", "thought"):
            thought = self._think(self._reasoning)
        content = self._speak() if self._phase == "content" else ""
        self._n_reasoning += len(thought)
        self._n_content += len(content)
        return Piece(thought, content)

    def rest(self, reasoning: str, content: str) -> Piece:
        """Return what of the whole reply was not given out yet."""
        return Piece(reasoning[self._n_reasoning :], content[self._n_content :])

    def _think(self, reasoning: Reasoning) -> str:
        if self._phase == "start":
            text = self._held.lstrip()
            if reasoning.begin.startswith(text[: len(reasoning.begin)]):
                if len(text) < len(reasoning.begin):
                    return ""
                text = text[len(reasoning.begin) :]
            elif not self._opened:
                self._phase = "content"
                return ""
            self._phase, self._held = "thought", text
        if self._n_reasoning == 0:
            self._held = self._held.lstrip()
        thought, end, content = self._held.partition(reasoning.end)
        if end:
            self._phase, self._held, self._skips_space = "content", content, True
            return thought.rstrip()
        return self._take(self._certain(self._held, (reasoning.end,)))

    def _speak(self) -> str:
        if self._skips_space:
            self._held = self._held.lstrip()
            self._skips_space = not self._held
        if not self._may_call:
            return self._take(len(self._held))
        text = self._held.lstrip()
        if self._n_content == 0:
            if text and text.startswith(self._starts):
                self._phase = "call"
                return ""
            if any(start.startswith(text) for start in self._starts):
                return ""
        found = [at for marker in self._markers if (at := self._held.find(marker)) >= 0]
        if found:
            self._phase = "call"
            return self._held[: min(found)].rstrip()
        return self._take(self._certain(self._held, self._markers))

    def _take(self, n: int) -> str:
        piece, self._held = self._held[:n], self._held[n:]
        return piece

    @staticmethod
    def _certain(text: str, markers: tuple[str, ...]) -> int:
        """How many characters are no part of a marker, nor white space that may be dropped."""
        longest = max(map(len, markers), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(marker.startswith(text[-n:]) for marker in markers):
                text = text[:-n]
                break
        return len(text.rstrip())
