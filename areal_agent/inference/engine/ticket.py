"""What a caller holds of a request in flight. Belongs to the event loop."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from areal_agent.inference.engine.request import Generation, Sequence

Part = tuple[list[int], list[float], list[int]]
"""Token ids, logprobs and versions that came since the last part."""


class PartBuffer:
    """Hands on what a request has sampled, at least `seconds` apart. The engine thread's own."""

    def __init__(self, emit: Callable[[Part], None], seconds: float) -> None:
        self._emit = emit
        self._seconds = seconds
        self._since = time.monotonic()
        self._given = 0

    def sampled(self, sequence: Sequence) -> None:
        """Note that there is a token more."""
        if time.monotonic() - self._since >= self._seconds:
            self.flush(sequence)

    def flush(self, sequence: Sequence) -> None:
        """Hand on what was not yet."""
        self._since = time.monotonic()
        start, self._given = self._given, len(sequence.logprobs)
        if self._given > start:
            ids = sequence.tokens[sequence.prompt_length + start :]
            self._emit((ids, sequence.logprobs[start:], sequence.versions[start:]))


class Ticket:
    """A request in flight. Await `result()`, or iterate over `parts()` first."""

    def __init__(
        self, cancel: Callable[[Sequence], None], done: asyncio.Future[Generation]
    ) -> None:
        self._cancel = cancel
        self._done = done
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()
        self.sequence: Sequence | None = None

    async def result(self) -> Generation:
        """Wait for the end.

        Raises:
            EngineFault: the engine broke or was stopped.
        """
        return await self._done

    async def parts(self) -> AsyncGenerator[Part]:
        """Yield tokens as they come; ends with the request. Needs `stream=True`."""
        while (part := await self._parts.get()) is not None:
            yield part

    def cancel(self) -> None:
        """Let the engine drop the request; `result()` then gives what there was."""
        if not self._done.done() and self.sequence is not None:
            self._cancel(self.sequence)

    def feed(self, part: Part) -> None:
        self._parts.put_nowait(part)

    def settle(self, generation: Generation) -> None:
        if not self._done.done():
            self._done.set_result(generation)
        self._parts.put_nowait(None)

    def fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # a caller who has left does not make it "never retrieved"
        self._parts.put_nowait(None)
