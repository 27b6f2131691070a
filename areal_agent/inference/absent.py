"""What stands for the engine where there is none: agents that talk to an endpoint of others."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from areal_agent.errors import InferenceError
from areal_agent.types import ModelRequest, Scores, TokenSink


class AbsentEngine:
    """Refuses everything, and says why."""

    version = 0

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> NoReturn:
        """Refuse to sample."""
        self._refuse()

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """Refuse to score."""
        self._refuse()

    async def update_weights(self, path: Path, version: int) -> None:
        """Refuse weights."""
        self._refuse()

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Refuse to pause."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InferenceError(
            "inference.type is openai: an endpoint takes and gives messages, no token ids"
        )

    async def __aenter__(self) -> Self:
        """Return this."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to release."""
