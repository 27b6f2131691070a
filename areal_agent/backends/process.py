"""A backend in a child process: the driver's loop stays free while the trainer computes."""

import asyncio
import logging
import socket
import sys
import time
from asyncio import StreamWriter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from areal_agent import errors
from areal_agent.aio import Turns, open_stream
from areal_agent.backends.base import LossSpec, StepResult
from areal_agent.backends.frames import Frame, FrameReader, encode, pack_batch
from areal_agent.children import ChildProcess
from areal_agent.config.training import TrainEngineConfig
from areal_agent.errors import ArealAgentError, LaunchError, StallError, TrainError
from areal_agent.trajectory import RolloutBatch, TrainBatch

logger = logging.getLogger(__name__)

STARTUP_SECONDS = 300.0
"""How long a worker may take to load its model."""

_DEATH_SECONDS = 5.0
_SMALL_BYTES = 1 << 20
"""Below this a frame is made in the loop: a thread would cost more than the copy."""


class ProcessBackend:
    """A `BackendHandle` whose worker is one child process on this machine.

    Calls run one at a time, in the order asked for; the next is sent while one runs, so that the
    worker need not wait for the driver in between. A cancelled call is left to the worker to
    finish, and its answer is passed over. The worker's death fails the calls that wait for it.
    """

    def __init__(
        self,
        config: TrainEngineConfig,
        model: Path,
        *,
        total_optimizer_steps: int,
        seed: int,
        log: Path,
        startup_timeout_seconds: float = STARTUP_SECONDS,
        command: Sequence[str] = (sys.executable, "-m", "areal_agent.backends.worker"),
    ) -> None:
        """Describe the worker.

        Args:
            config: settings of the trainer.
            model: Hugging Face folder to start from.
            total_optimizer_steps: length of the learning rate schedule.
            seed: of the worker's random numbers.
            log: file for what the worker prints.
            startup_timeout_seconds: how long loading the model may take.
            command: the worker's program; it gets the number of its socket as the last argument.
        """
        self._spec: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "model": str(model),
            "total_optimizer_steps": total_optimizer_steps,
            "seed": seed,
        }
        self._threads = config.threads
        self._call_seconds = config.call_timeout_seconds
        self._log = log
        self._startup_seconds = startup_timeout_seconds
        self._command = list(command)
        self._sending = asyncio.Lock()
        self._answers = Turns()
        self._next_id = 0
        self._stack = AsyncExitStack()
        self._child: ChildProcess | None = None
        self._reader: FrameReader | None = None
        self._writer: StreamWriter | None = None
        self._asked: dict[int, tuple[str, float]] = {}
        self._overdue: tuple[str, float] | None = None
        self.busy_spans: list[tuple[float, float]] = []
        """Start and end of each `logprobs` and `step`, in the worker, as ``time.time()``."""

    async def __aenter__(self) -> Self:
        """Start the worker and load the model.

        Raises:
            ConfigError: the worker refused the settings or the model folder.
            TrainError: it died, or took longer than `startup_timeout_seconds`.
        """
        async with AsyncExitStack() as stack:
            ours, theirs = socket.socketpair()
            with theirs:
                reader, self._writer = await open_stream(ours, stack)
                self._child = ChildProcess(
                    "the trainer's worker",
                    [*self._command, str(theirs.fileno())],
                    log=self._log,
                    env={"OMP_NUM_THREADS": str(self._threads)},
                    pass_fds=(theirs.fileno(),),
                )
                await stack.enter_async_context(self._child)
            self._reader = FrameReader(reader)
            try:
                async with asyncio.timeout(self._startup_seconds):
                    _refuse_error(await self._exchange(self._spec, {}))
            except TimeoutError:
                raise TrainError(
                    f"the trainer's worker did not load {self._spec['model']} within "
                    f"{self._startup_seconds:g} s; {self._child.describe_log()}"
                ) from None
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the worker, whatever it is doing."""
        await self._stack.aclose()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._entered().pid

    async def wait_died(self) -> None:
        """Watch the worker: returns once it was stopped by us.

        Raises:
            TrainError: it ended by itself.
        """
        try:
            await self._entered().wait_died()
        except LaunchError as error:
            raise TrainError(str(error)) from None

    async def logprobs(self, batch: RolloutBatch) -> Tensor:
        """See `TrainBackend.logprobs`."""
        values, tensors = pack_batch(batch)
        answer = await self._call({"method": "logprobs", "batch": values}, tensors, busy=True)
        return answer.tensors["logprobs"]

    async def step(self, batch: TrainBatch, loss: LossSpec) -> StepResult:
        """See `TrainBackend.step`."""
        values, tensors = pack_batch(batch)
        spec = {"name": loss.name, "settings": dict(loss.settings)}
        header = {"method": "step", "batch": values, "loss": spec}
        answer = (await self._call(header, tensors, busy=True)).header
        return StepResult(applied=answer["applied"], metrics=answer["metrics"])

    async def export(self, folder: Path) -> None:
        """See `TrainBackend.export`."""
        await self._call({"method": "export", "folder": _absolute(folder)})

    async def save(self, folder: Path) -> None:
        """See `TrainBackend.save`."""
        await self._call({"method": "save", "folder": _absolute(folder)})

    async def load(self, folder: Path) -> None:
        """See `TrainBackend.load`."""
        await self._call({"method": "load", "folder": _absolute(folder)})

    def describe(self) -> list[str]:
        """Say what the worker was asked and has not answered yet."""
        child, now = self._child, time.monotonic()
        if child is None:
            return ["the worker has not been started"]
        code = child.returncode
        state = "runs" if code is None else f"ended with exit code {code}"
        asked = [f"`{name}` asked {now - at:.0f} s ago" for name, at in self._asked.values()]
        if self._overdue is not None:
            name, at = self._overdue
            asked.insert(0, f"has not answered `{name}`, asked {now - at:.0f} s ago")
        doing = "; ".join(asked) or "has nothing to do"
        return [f"process {child.pid} {state}: {doing} (log: {child.log})"]

    async def _call(
        self,
        header: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        *,
        busy: bool = False,
    ) -> Frame:
        """Send one request and wait for its answer.

        Raises:
            StallError: the worker has not taken, or not answered, it for too long.
        """
        name = str(header["method"])
        key = id(header)
        self._asked[key] = asked = (name, time.monotonic())
        try:
            answer = await self._exchange(header, tensors or {}, self._call_seconds)
        except TimeoutError:
            self._overdue = asked
            child = self._entered()
            raise StallError(
                f"{child.name} (process {child.pid}) has not answered `{name}` within "
                f"{self._call_seconds:g} s (actor.call_timeout_seconds); {child.describe_log()}"
            ) from None
        finally:
            del self._asked[key]
        if busy:
            start, end = answer.header["span"]
            self.busy_spans.append((start, end))
        _refuse_error(answer)
        return answer

    async def _exchange(
        self,
        header: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        seconds: float | None = None,
    ) -> Frame:
        """Send a frame, and read the one that answers it, each within so many seconds."""
        child = self._entered()
        if self._reader is None or self._writer is None:
            raise TrainError("the trainer's worker is not connected: use it with `async with`")
        try:
            async with self._sending:
                call_id, self._next_id = self._next_id, self._next_id + 1
                data = await self._encoded(Frame({"id": call_id, **header}, tensors))
                place = self._answers.come()
                self._writer.write(data)
                async with asyncio.timeout(seconds):
                    await self._writer.drain()
            async with self._answers.turn(place), asyncio.timeout(seconds):
                answer = await self._reader.read()
                while answer.header["id"] != call_id:  # of a call that was cancelled
                    answer = await self._reader.read()
        except TimeoutError:
            raise
        except (OSError, EOFError) as error:
            raise TrainError(await _describe_death(child)) from error
        return answer

    @staticmethod
    async def _encoded(frame: Frame) -> bytes:
        size = sum(tensor.nbytes for tensor in frame.tensors.values())
        return encode(frame) if size < _SMALL_BYTES else await asyncio.to_thread(encode, frame)

    def _entered(self) -> ChildProcess:
        if self._child is None:
            raise TrainError("the trainer's worker has not been started: use it with `async with`")
        return self._child


def _absolute(folder: Path) -> str:
    return str(folder.absolute())


async def _describe_death(child: ChildProcess) -> str:
    """Wait for the end of a worker that has closed its socket, and tell of it."""
    try:
        async with asyncio.timeout(_DEATH_SECONDS):
            await child.wait_died()
    except LaunchError as error:
        return str(error)
    except TimeoutError:
        pass
    return f"{child.name} closed its connection; {child.describe_end()}"


def _refuse_error(answer: Frame) -> None:
    if "error" in answer.header:
        raise _revive(answer.header["error"])


def _revive(error: Mapping[str, str]) -> ArealAgentError:
    """Make the exception that the worker named."""
    kind = getattr(errors, error["type"], None)
    if isinstance(kind, type) and issubclass(kind, ArealAgentError):
        return kind(error["message"])
    return TrainError(
        f"the trainer's worker failed with {error['type']}: {error['message']}\n"
        f"{error['traceback']}"
    )
