"""Text from ids as they come: whole characters only, and where a stop string begins."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Ids to text, special tokens left out."""

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns ids into text piece by piece.

    A character may be spread over several tokens, and a token's text may depend on the one before.
    So a small window of ids is decoded twice, with and without the new ones, and text is given out
    only when it does not end in a half character.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._window = 0
        self._given = 0

    def push(self, *tokens: int) -> str:
        """Add tokens; return the text that became certain."""
        self._ids += tokens
        return self._advance(final=False)

    def finish(self) -> str:
        """Return what is still held back, half characters included."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._window : self._given])
        after = self._decode(self._ids[self._window :])
        if len(after) <= len(before) or (after.endswith(_REPLACEMENT) and not final):
            return ""
        self._window, self._given = self._given, len(self._ids)
        return after[len(before) :]


class StopMatcher:
    """Watches the text of a reply for stop strings.

    Text that may be the beginning of a stop string is held back until that is known.
    """

    def __init__(self, decode: Decode, stop: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stop = tuple(stop)
        self._longest = max((len(s) for s in self._stop), default=0)
        self._text = ""
        self._given = 0
        self.matched: str | None = None

    def push(self, *tokens: int) -> bool:
        """Add tokens; True when a stop string is now complete."""
        if self.matched is None:
            self._extend(self._detokenizer.push(*tokens))
        return self.matched is not None

    def take(self) -> str:
        """Return text that is certain and was not taken before."""
        held = 0 if self.matched is not None else self._held_back()
        end = max(self._given, len(self._text) - held)
        piece, self._given = self._text[self._given : end], end
        return piece

    def finish(self) -> str:
        """Return the whole text, cut before the stop string if one was found."""
        if self.matched is None:
            self._extend(self._detokenizer.finish())
        return self._text

    def take_rest(self) -> str:
        """Return all text that was not taken before; the reply has ended."""
        text = self.finish()
        piece, self._given = text[self._given :], len(text)
        return piece

    def _extend(self, piece: str) -> None:
        if not piece:
            return
        start = max(0, len(self._text) - self._longest + 1)
        self._text += piece
        found = [(at, s) for s in self._stop if (at := self._text.find(s, start)) >= 0]
        if found:
            at, self.matched = min(found)
            self._text = self._text[:at]

    def _held_back(self) -> int:
        for size in range(min(self._longest - 1, len(self._text)), 0, -1):
            tail = self._text[-size:]
            if any(s.startswith(tail) for s in self._stop):
                return size
        return 0
