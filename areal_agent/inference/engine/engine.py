"""The embedded engine as the event loop sees it: submit, stream, pause, update, score."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from areal_agent.config.inference import WeightUpdateMode
from areal_agent.errors import EngineFault, WeightUpdateError
from areal_agent.inference.engine.detokenize import Decode, StopMatcher
from areal_agent.inference.engine.loop import DecodeLoop
from areal_agent.inference.engine.request import GenerateRequest, Generation, Sequence
from areal_agent.inference.engine.runner import Runner
from areal_agent.inference.engine.ticket import PartBuffer, Ticket

logger = logging.getLogger(__name__)

T = TypeVar("T")
PauseMode = Literal["abort", "keep"]


class Engine:
    """Samples tokens from one model with continuous batching.

    Constructed means inert; entered means that a thread decodes. All methods belong to the event
    loop that entered it.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        decode: Decode,
        max_running: int = 128,
        max_model_len: int = 2048,
        weight_update: WeightUpdateMode = "keep",
        version: int = 0,
    ) -> None:
        self._runner = runner
        self._decode_ids = decode
        self._weight_update: WeightUpdateMode = weight_update
        self._events: deque[Callable[[], None]] = deque()
        self._open: set[Ticket] = set()
        self._pending: set[asyncio.Future[Any]] = set()
        self._updating = asyncio.Lock()
        self._stack = contextlib.ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preparer: ThreadPoolExecutor | None = None
        self._core = DecodeLoop(runner, max_running=max_running, version=version, flush=self._flush)
        self.max_model_len = max_model_len
        self.vocab_size = runner.vocab_size

    # --- facts ------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Version of the weights that the next token will be sampled from."""
        return self._core.version

    @property
    def paused(self) -> bool:
        return self._core.paused

    @property
    def fault(self) -> BaseException | None:
        """What broke the engine, or None."""
        return self._core.fault

    def stats(self) -> dict[str, Any]:
        """Counters and gauges, for `/control/stats` and `/metrics`."""
        core = self._core
        return {
            **core.meters.snapshot(),
            "running": len(core.scheduler.running),
            "waiting": len(core.scheduler.waiting),
            "slots": core.scheduler.max_running,
            "version": core.version,
            "paused": core.paused,
        }

    def busy_spans(self) -> list[tuple[float, float]]:
        """Recent intervals in which tokens were computed."""
        return self._core.meters.spans()

    # --- requests ---------------------------------------------------------------------------------

    def submit(
        self, request: GenerateRequest, *, stream: bool = False, interval_seconds: float = 0.0
    ) -> Ticket:
        """Queue a request whose ids and settings are known to be valid.

        With `stream`, parts come at least `interval_seconds` apart.

        Raises:
            EngineFault: the engine has broken or is not running.
        """
        ticket = Ticket(self.cancel, self._running_loop().create_future())
        stop = request.params.stop

        parts = PartBuffer(
            lambda part: self._events.append(lambda: ticket.feed(part)), interval_seconds
        )

        def done(generation: Generation) -> None:
            if stream:
                parts.flush(sequence)
            self._events.append(lambda: self._settle(ticket, generation))

        sequence = Sequence(
            request,
            limit=min(len(request.prompt) + request.params.max_tokens, self.max_model_len),
            on_done=done,
            on_token=parts.sampled if stream else None,
            matcher=StopMatcher(self._decode_ids, stop) if stop else None,
        )
        ticket.sequence = sequence
        self._core.post(lambda: self._core.submit(sequence))
        self._open.add(ticket)
        return ticket

    def cancel(self, sequence: Sequence) -> None:
        """Drop a request; called through its ticket."""
        with contextlib.suppress(EngineFault):  # then there is nothing left to drop
            self._core.post(lambda: self._core.cancel(sequence))

    async def abort(self, request_ids: list[str] | None = None) -> int:
        """End requests, all for None, with what they have; returns how many."""
        ids = None if request_ids is None else frozenset(request_ids)
        return await self._ask(lambda: self._core.abort(ids))

    # --- control ----------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop decoding; new requests queue. `abort` ends those that have begun."""

        def command() -> None:
            self._core.paused = True
            if mode == "abort":
                self._core.abort(waiting=False)

        await self._ask(command)

    async def resume(self) -> None:
        """Go on decoding."""

        def command() -> None:
            self._core.paused = False

        await self._ask(command)

    async def update_weights(
        self,
        folder: Path,
        version: int,
        mode: WeightUpdateMode | None = None,
        *,
        allow_older: bool = False,
    ) -> int:
        """Serve the weights in `folder` as `version`; decoding goes on while they are read.

        `allow_older` takes back an update that other replicas could not follow.

        Raises:
            WeightUpdateError: they cannot be served; the old ones still are.
            EngineFault: the engine has broken.
        """
        async with self._updating:
            if not allow_older:
                self._check_version(version)
            weights = await self._running_loop().run_in_executor(
                self._preparer, self._runner.prepare, folder
            )
            await self._ask(
                lambda: self._core.install(weights, version, mode or self._weight_update)
            )
        logger.info("serving weights of version %d", version)
        return version

    def _check_version(self, version: int) -> None:
        if version < self.version:
            raise WeightUpdateError(
                f"expected version {self.version} or later, got {version}: an older one is "
                "served only when allow_older is set, to take an update back"
            )

    async def score(
        self, rows: list[list[int]], temperature: float
    ) -> tuple[list[list[float]], int]:
        """Logprobs of given ids under the current weights, and their version."""
        return await self._ask(lambda: self._core.score(rows, temperature))

    # --- lifetime ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the decoding thread."""
        self._loop = asyncio.get_running_loop()
        self._preparer = self._stack.enter_context(ThreadPoolExecutor(1, "areal-weights"))
        decoder = self._stack.enter_context(ThreadPoolExecutor(1, "areal-engine"))
        self._stack.callback(self._core.stop)
        future = decoder.submit(self._core.run)
        future.add_done_callback(lambda f: self._post_to_loop(lambda: self._ended(f.exception())))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Fail what is in flight and join the threads."""
        self._core.stop()
        self._fail_all(EngineFault("the engine has been stopped"))
        await asyncio.to_thread(self._stack.close)

    # --- between the threads ----------------------------------------------------------------------

    async def _ask(self, command: Callable[[], T]) -> T:
        """Run a command in the decoding thread, between steps, and wait for its result."""
        loop = self._running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            result = command()
            self._events.append(lambda: None if answer.done() else answer.set_result(result))

        self._core.post(run)
        self._pending.add(answer)
        try:
            return await answer
        finally:
            self._pending.discard(answer)

    def _flush(self) -> None:
        """Called by the decoding thread after each step."""
        if self._events:
            self._post_to_loop(self._deliver)

    def _deliver(self) -> None:
        while self._events:
            self._events.popleft()()

    def _settle(self, ticket: Ticket, generation: Generation) -> None:
        self._open.discard(ticket)
        ticket.settle(generation)

    def _ended(self, error: BaseException | None) -> None:
        self._deliver()
        if error is not None:
            logger.error("the engine has broken; every waiting request fails", exc_info=error)
            fault = EngineFault(f"the engine has broken: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._fail_all(fault)

    def _fail_all(self, error: EngineFault) -> None:
        for ticket in list(self._open):
            ticket.fail(error)
        self._open.clear()
        for answer in list(self._pending):
            if not answer.done():
                answer.set_exception(error)

    def _post_to_loop(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise EngineFault("the engine is not running: enter it with `async with` first")
        return self._loop
