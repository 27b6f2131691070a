"""The tokens of one reply as they come: one writes, any number reads, each from the start."""

from collections.abc import AsyncGenerator, Sequence

from areal_agent.aio import Flag

Part = tuple[Sequence[int], Sequence[float], Sequence[int]]
"""Ids, logprobs and weight versions, one of each a token."""


class Tape:
    """Grows until it is ended."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._ended = False
        self._news = Flag()

    def append(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        """Add tokens; a `TokenSink`."""
        self._parts.append((ids, logprobs, versions))
        news, self._news = self._news, Flag()
        news.set()

    def end(self) -> None:
        """No more tokens will come, for whatever reason."""
        self._ended = True
        self._news.set()

    async def started(self) -> None:
        """Wait for the first token or the end."""
        while not self._parts and not self._ended:
            await self._news.wait()

    async def parts(self) -> AsyncGenerator[Part]:
        """Yield what came and what comes, until the end."""
        n = 0
        while True:
            news = self._news
            while n < len(self._parts):
                yield self._parts[n]
                n += 1
            if self._ended:
                return
            if n == len(self._parts):
                await news.wait()
