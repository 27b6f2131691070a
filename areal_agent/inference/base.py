"""What every source of tokens promises."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from areal_agent.types import ModelRequest, ModelResponse, Scores, TokenSink


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What the servers have to do, taken together."""

    running: int
    """Requests that are being decoded."""
    waiting: int
    """Requests that wait for a slot."""
    slots: int
    """Requests that can be decoded together."""
    tokens: int = 0
    """Tokens that were sampled so far."""

    @property
    def backlog(self) -> int:
        """Requests beyond the slots; negative while slots are free."""
        return self.running + self.waiting - self.slots


class InferenceEngine(Protocol):
    """Samples tokens from the newest weights it was given.

    Lifetime: an async context manager. Constructed means inert; entered means that it answers;
    leaving it cancels what is in flight.
    """

    @property
    def version(self) -> int:
        """Version of the weights that the next token will be sampled from."""
        ...

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        """Sample one continuation.

        The budget is ``min(max_tokens - len(input_ids), max_new_tokens)``. An update that arrives
        midway does not fail the call: it goes on, and `output_versions` shows where the weights
        changed. Cancelling the caller cancels the work on the server. `on_tokens` hears of each
        token once, in order, before the call returns; what it heard is what is returned.

        Raises:
            RequestError: the request itself is refused (also: no budget left for the prompt).
            ServerError: no replica answered within the deadline.
            EngineFault: the engine broke.
        """
        ...

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """Logprobs of given ids under the current weights, and their version.

        One list per row, one float per token: entry t is log p(row[t] | row[:t]) under the full
        softmax at `temperature`; entry 0 is 0. They are what `agenerate` reports for the same ids
        under the same weights.
        """
        ...

    async def update_weights(self, path: Path, version: int) -> None:
        """Serve the Hugging Face folder `path` as `version`.

        Returns once every replica has it.

        Raises:
            WeightUpdateError: a replica could not load it; every replica serves the old version.
        """
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Hold new requests and decoding while the body runs; resumes on every exit path."""
        ...

    async def __aenter__(self) -> Self:
        """Connect or start; return once the engine answers."""
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what is in flight and release everything."""
        ...
