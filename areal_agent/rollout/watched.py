"""The run's engine with somebody who hears of every turn that it sampled."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from areal_agent.inference.base import InferenceEngine
from areal_agent.types import ModelRequest, ModelResponse, Scores, TokenSink


class WatchedEngine:
    """Passes everything on to an engine, and each finished call to `hear`.

    Entering and leaving do nothing: the engine is somebody else's.
    """

    def __init__(
        self, engine: InferenceEngine, hear: Callable[[ModelRequest, ModelResponse], None]
    ) -> None:
        self._engine = engine
        self._hear = hear

    @property
    def version(self) -> int:
        """See `InferenceEngine.version`."""
        return self._engine.version

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        """See `InferenceEngine.agenerate`."""
        response = await self._engine.agenerate(request, on_tokens=on_tokens)
        self._hear(request, response)
        return response

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """See `InferenceEngine.score`."""
        return await self._engine.score(rows, temperature=temperature)

    async def update_weights(self, path: Path, version: int) -> None:
        """See `InferenceEngine.update_weights`."""
        await self._engine.update_weights(path, version)

    def paused(self) -> AbstractAsyncContextManager[None]:
        """See `InferenceEngine.paused`."""
        return self._engine.paused()

    async def __aenter__(self) -> Self:
        """Return this."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the engine up."""
