"""A scripted inference engine: tests say what it samples, when, and how it fails."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from areal_agent.errors import EngineFault, RequestError, WeightUpdateError
from areal_agent.types import ModelRequest, ModelResponse, Scores, StopReason, TokenSink


@dataclass(frozen=True, slots=True)
class Reply:
    """What the engine samples for one request, before its budget cuts it."""

    ids: Sequence[int] = (7, 8, 9)
    logprobs: Sequence[float] | None = None
    """None means -0.5 for each token."""
    stop_reason: StopReason = "stop"


Script = Callable[[ModelRequest], "Reply | BaseException"]
"""Chooses what a request gets. An exception is raised instead."""


class FakeEngine:
    """Implements `InferenceEngine` without a model.

    The version is read for each token, one loop turn apart, so that a request may span an update.
    `hold()` makes requests wait, `release()` lets them go; `die()` fails them all.
    """

    def __init__(self, script: Script | None = None, *, version: int = 0) -> None:
        self._script: Script = script or (lambda request: Reply())
        self._version = version
        self._flow = asyncio.Event()
        self._flow.set()
        self._fault: EngineFault | None = None
        self._bad_paths: set[Path] = set()
        self.requests: list[ModelRequest] = []
        """All requests seen."""
        self.running = 0
        """Requests in flight."""
        self.cancelled = 0
        """Requests whose caller was cancelled."""
        self.loaded: list[tuple[Path, int]] = []
        """Weights loaded, in order."""

    @property
    def version(self) -> int:
        """Version of the weights that the next token will be sampled from."""
        return self._version

    def hold(self) -> None:
        """Let no request go on."""
        self._flow.clear()

    def release(self) -> None:
        """Let requests go on."""
        self._flow.set()

    def bump(self) -> int:
        """Serve the next version without a folder."""
        self._version += 1
        return self._version

    def die(self, message: str = "the engine broke") -> None:
        """Fail all requests, waiting ones included."""
        self._fault = EngineFault(message)
        self._flow.set()

    def refuse_weights(self, path: Path) -> None:
        """Fail updates from `path`."""
        self._bad_paths.add(path)

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        """See `InferenceEngine.agenerate`."""
        if request.gconfig.n_samples != 1:
            raise ValueError(f"expected n_samples 1, got {request.gconfig.n_samples}")
        prompt = list(request.input_ids)
        gconfig = request.gconfig
        budget = min(gconfig.max_tokens - len(prompt), gconfig.max_new_tokens)
        if budget < 1:
            raise RequestError(
                f"no budget: the prompt has {len(prompt)} tokens, max_tokens is "
                f"{gconfig.max_tokens}"
            )
        self.requests.append(request)
        self.running += 1
        try:
            return await self._sample(request, prompt, budget, on_tokens)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _sample(
        self, request: ModelRequest, prompt: list[int], budget: int, on_tokens: TokenSink | None
    ) -> ModelResponse:
        reply = self._script(request)
        if isinstance(reply, BaseException):
            raise reply
        versions: list[int] = []
        logprobs = reply.logprobs or [-0.5] * len(reply.ids)
        for token, logprob in zip(reply.ids[:budget], logprobs, strict=False):
            await self._wait()
            versions.append(self._version)
            if on_tokens is not None:
                on_tokens([token], [logprob], [self._version])
            await asyncio.sleep(0)
        n = len(versions)
        return ModelResponse(
            input_tokens=prompt,
            output_tokens=list(reply.ids[:n]),
            output_logprobs=list(logprobs[:n]),
            output_versions=versions,
            stop_reason="length" if n < len(reply.ids) else reply.stop_reason,
            temperature=request.gconfig.effective_temperature,
        )

    async def _wait(self) -> None:
        await self._flow.wait()
        if self._fault is not None:
            raise self._fault

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """See `InferenceEngine.score`: -0.5 for each token after the first."""
        return Scores([[0.0] + [-0.5] * (len(row) - 1) for row in rows], self._version)

    async def update_weights(self, path: Path, version: int) -> None:
        """See `InferenceEngine.update_weights`."""
        if path in self._bad_paths:
            raise WeightUpdateError(f"cannot load {path}; version {self._version} is still served")
        self.loaded.append((path, version))
        self._version = version

    def paused(self) -> AbstractAsyncContextManager[None]:
        """See `InferenceEngine.paused`."""
        return self._paused()

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    async def __aenter__(self) -> Self:
        """Start."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
