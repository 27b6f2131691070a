"""An inference engine behind HTTP: one or more replicas of the embedded server."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from areal_agent.aio import Pacer, collect, run_shielded
from areal_agent.data.seeds import derive_seed
from areal_agent.errors import RequestError, ServerError, WeightUpdateError
from areal_agent.inference.base import ServerLoad
from areal_agent.inference.calls import Caller, backoff_seconds
from areal_agent.inference.control import ControlPlane
from areal_agent.inference.fleet import Fleet
from areal_agent.inference.openai import (
    COMPLETIONS,
    CompletionStream,
    Segment,
    completion_body,
    read_completion,
    read_scores,
)
from areal_agent.inference.pool import ReplicaPool
from areal_agent.net.clients import HttpClients
from areal_agent.types import ModelRequest, ModelResponse, Scores, TokenSink

_KEEP_SECONDS = 1.0
"""Where there are several replicas, replies are streamed, in parts this far apart: when a replica
dies, another one goes on from what has come. With one there is nobody to go on."""


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """How long calls may take."""

    request_seconds: float = 600.0
    """Total deadline of one `agenerate` or `score`, retries included."""
    control_seconds: float = 10.0
    """Of one control call."""
    update_seconds: float = 300.0
    """Of loading weights on one replica."""
    retry_seconds: float = 30.0
    """How long failures in a row are retried."""


class HttpInferenceEngine:
    """Samples from replicas over HTTP, and loads weights into all of them together.

    Requests with one `rid` go to one replica. A reply that the server interrupts is resumed, with
    what is left of its budget, until it ends by itself.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        clients: HttpClients,
        model: str,
        control_key: str,
        api_key: str | None = None,
        weights: Path | None = None,
        instance_ids: Sequence[str] | None = None,
        timeouts: HttpTimeouts | None = None,
    ) -> None:
        """Wire things up; nothing is sent before the engine is entered.

        Args:
            urls: one a replica; see `areal_agent.net.serve.base_url`.
            clients: owned by the run, open while the engine is.
            model: the name that the servers give to the model.
            control_key: opens the servers' control routes.
            api_key: opens the others; None when they are open.
            weights: the folder that the servers loaded at their start. Without it a first update
                that some replicas refuse cannot be undone on the others.
            instance_ids: who must answer at each URL. None takes whoever answers.
            timeouts: None takes the defaults.
        """
        timeouts = timeouts or HttpTimeouts()
        self._model = model
        self._weights = weights
        self._request_timeout = timeouts.request_seconds
        self._pool = ReplicaPool(urls)
        if instance_ids is not None:
            for replica, name in zip(self._pool.replicas, instance_ids, strict=True):
                replica.instance_id = name
        self._caller = Caller(self._pool, clients.internal, retry_seconds=timeouts.retry_seconds)
        self._control = ControlPlane(
            self._pool,
            clients.internal,
            control_key=control_key,
            timeout_seconds=timeouts.control_seconds,
            update_timeout_seconds=timeouts.update_seconds,
        )
        self._keep_seconds = _KEEP_SECONDS if len(urls) > 1 else None
        self.fleet = Fleet(
            self._pool,
            self._control,
            current=lambda: (self._weights, self._version),
            is_paused=lambda: self._pauses > 0,
        )
        """Takes replicas out of service, and puts them back."""
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._control_headers = {"authorization": f"Bearer {control_key}"}
        self._version = 0
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._pauses = 0
        self._open = asyncio.Event()
        self._pacer = Pacer()
        self._entered = False
        self._deadlines: set[asyncio.Timeout] = set()

    @property
    def version(self) -> int:
        """Version of the weights that every replica has."""
        return self._version

    @property
    def n_running(self) -> int:
        """Requests in flight, over all replicas."""
        return sum(replica.running for replica in self._pool.replicas)

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        """Sample one continuation; see `InferenceEngine.agenerate`.

        A reply in several segments is judged anew by the server in each: a stop string across the
        seam is not seen, and the frequency penalty counts from the seam.
        """
        gconfig = request.gconfig
        if gconfig.n_samples != 1:
            raise ValueError(
                f"expected n_samples 1 in a ModelRequest, got {gconfig.n_samples}: call agenerate "
                "once for each sample"
            )
        n_prompt = len(request.input_ids)
        budget = min(gconfig.max_tokens - n_prompt, gconfig.max_new_tokens)
        if budget < 1:
            raise RequestError(
                f"no budget for a reply: the prompt has {n_prompt} tokens and gconfig.max_tokens "
                f"is {gconfig.max_tokens}; shorten the prompt or raise max_tokens"
            )
        now = asyncio.get_running_loop().time
        started = now()
        async with self._deadline(f"request {request.rid}"):
            with self._pool.conversation(request.rid):
                reply = await self._sample(request, budget, on_tokens)
            await self._pacer.turn()
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=reply.ids,
            output_logprobs=reply.logprobs,
            output_versions=reply.versions,
            stop_reason=reply.stop_reason,
            latency_seconds=now() - started,
            temperature=gconfig.effective_temperature,
        )

    async def _sample(
        self, request: ModelRequest, budget: int, on_tokens: TokenSink | None
    ) -> Segment:
        """Ask until the reply is whole; its stop reason is never ``abort``."""
        prompt = list(request.input_ids)
        whole = Segment([], [], [], "abort")
        segments = fruitless = 0
        while True:
            await self._open.wait()
            part = await self._segment(
                request, prompt, budget, whole.ids, number=segments, on_tokens=on_tokens
            )
            segments += 1
            whole = Segment(
                whole.ids + part.ids,
                whole.logprobs + part.logprobs,
                whole.versions + part.versions,
                part.stop_reason,
            )
            if part.stop_reason != "abort":
                return whole
            if len(whole.ids) >= budget:
                return Segment(whole.ids, whole.logprobs, whole.versions, "length")
            fruitless = 0 if part.ids else fruitless + 1
            if fruitless:
                await asyncio.sleep(backoff_seconds(fruitless))

    async def _segment(
        self,
        request: ModelRequest,
        prompt: list[int],
        budget: int,
        done: list[int],
        *,
        number: int,
        on_tokens: TokenSink | None,
    ) -> Segment:
        seed, limit, version = request.gconfig.seed, budget - len(done), self._version
        if seed is not None and number:
            # The server counts a reply's places from 0: the same seed would repeat its draws.
            seed = derive_seed(seed, "segment", number)
        left = {
            "max_new_tokens": limit,
            "min_new_tokens": max(request.gconfig.min_new_tokens - len(done), 0),
            "seed": seed,
        }
        interval = self._keep_seconds if on_tokens is None else 0.0
        body = completion_body(
            prompt + done,
            request.gconfig.model_copy(update=left),
            model=self._model,
            request_id=f"{self._name}-{next(self._numbers)}",
            cache_key=request.rid,
            stream_interval=interval,
        )
        post = partial(self._caller.post, COMPLETIONS, body, rid=request.rid, headers=self._headers)
        if interval is None:
            return read_completion(await post(), max_new_tokens=limit, version=version)
        stream = CompletionStream(on_tokens, max_new_tokens=limit, version=version)
        try:
            await post(on_line=stream.line)
        except ServerError:
            # What has come was told already; the rest is asked for as after an interruption.
            if not stream.heard:
                raise
        return stream.segment()

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """See `InferenceEngine.score`."""
        body = orjson.dumps({"rows": [list(row) for row in rows], "temperature": temperature})
        async with self._deadline("score"):
            content = await self._caller.post("/control/score", body, headers=self._control_headers)
        return read_scores(content, [len(row) for row in rows])

    async def update_weights(self, path: Path, version: int) -> None:
        """See `InferenceEngine.update_weights`.

        A replica that is down is given the weights when it comes back, also when none is up. One
        that fails alone is down until `fleet` has brought it up to date, if it does. Else those
        that have the new weights load the previous folder again; one that cannot gets no more
        requests.
        """
        if version <= self._version:
            raise WeightUpdateError(
                f"expected a version above {self._version}, got {version}: versions only grow"
            )
        async with self.fleet.changing:
            previous = None if self._weights is None else (self._weights, self._version)
            await self._control.update_weights(path, version, previous=previous)
            self._version, self._weights = version, path

    def paused(self) -> AbstractAsyncContextManager[None]:
        """See `InferenceEngine.paused`. May be nested; the outermost one resumes."""
        return self._paused()

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None]:
        self._pauses += 1
        self._open.clear()
        try:
            if self._pauses == 1:
                await self._control.pause("keep")
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                try:
                    await run_shielded(self._control.resume())
                finally:
                    self._open.set()

    async def stats(self) -> dict[str, dict[str, Any]]:
        """Return each replica's counts, by its instance where that is known, else by URL."""
        return await self._control.stats()

    async def load(self) -> ServerLoad | None:
        """Return what the replicas have to do together; None when none of them answers."""
        return await self._control.load()

    @asynccontextmanager
    async def _deadline(self, what: str) -> AsyncGenerator[None]:
        if not self._entered:
            raise ServerError("the engine is not open: use it inside `async with engine`")
        limit = asyncio.timeout(self._request_timeout)
        try:
            async with limit:
                self._deadlines.add(limit)
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            if not self._entered:
                raise ServerError(f"{what}: the engine was closed") from error
            raise ServerError(
                f"{what} was not answered within {self._request_timeout:g} s "
                "(rollout.request_timeout_seconds)"
            ) from error
        finally:
            self._deadlines.discard(limit)

    async def __aenter__(self) -> Self:
        """Check that every replica answers, is who it should be, and has the same weights.

        Raises:
            ServerError: naming what is wrong with which.
            RequestError: a server does not know the control key.
        """
        replicas = self._pool.replicas
        await collect(self._control.health(replica) for replica in replicas)
        versions = set(await collect(self._control.version(replica) for replica in replicas))
        if len(versions) > 1:
            raise ServerError(f"expected one version on all replicas, got {sorted(versions)}")
        self._version = versions.pop()
        self._open = asyncio.Event()
        self._pacer = Pacer()
        self._open.set()
        self.fleet.changing = asyncio.Lock()
        self._pauses = 0
        self._entered = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End what is in flight: its callers get a ServerError."""
        self._entered = False
        for limit in list(self._deadlines):
            limit.reschedule(asyncio.get_running_loop().time())
        self._deadlines.clear()
