"""A child process of ours: started in its own session, watched, logged, and stopped for certain."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from areal_agent.aio import run_to_end
from areal_agent.errors import LaunchError
from areal_agent.lifeline import Lifeline

logger = logging.getLogger(__name__)

_TAIL_BYTES = 8192
_KILL_SECONDS = 5.0


class ChildProcess:
    """Entered: the program runs. Left: it and all it started are gone.

    Its standard output and error go to `log`, its standard input is empty. It is in a session of
    its own, so Ctrl-C in the terminal reaches only us. It should call `lifeline.watch_parent`.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = True,
        pass_fds: Sequence[int] = (),
        stop_grace_seconds: float = 3.0,
    ) -> None:
        """Describe the program.

        Args:
            name: what messages call it.
            argv: program and arguments; no shell is involved.
            log: file that its output is appended to; readable by us only.
            env: variables on top of our own. Secrets go here, never into `argv`.
            inherit_env: False gives it the variables in `env` and no others.
            pass_fds: file descriptors it inherits.
            stop_grace_seconds: time between SIGTERM and SIGKILL when it is stopped. 0 means that
                it is killed at once.
        """
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = {**(os.environ if inherit_env else {}), **(env or {})}
        self._pass_fds = tuple(pass_fds)
        self._grace = stop_grace_seconds
        self._lifeline = ExitStack()
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0
        self._stopping = False

    async def __aenter__(self) -> Self:
        """Start the program.

        Raises:
            LaunchError: the operating system refused.
        """
        with ExitStack() as stack, _open_log(self.log) as log:
            lifeline = stack.enter_context(Lifeline())
            self._log_start = log.seek(0, os.SEEK_END)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**self._env, **lifeline.env},
                    pass_fds=(*self._pass_fds, *lifeline.pass_fds),
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"{self.name} could not be started: {error}") from error
            lifeline.child_started()
            self._lifeline = stack.pop_all()
        logger.info("%s runs as process %d, log in %s", self.name, self.pid, self.log)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it, also when we are being cancelled."""
        await run_to_end(self.stop)

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._entered().pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal, None while it runs."""
        return self._entered().returncode

    async def wait_died(self) -> None:
        """Watch it: returns once it was stopped by us.

        Raises:
            LaunchError: it ended by itself; the message has the exit code and the last log lines.
        """
        await self._entered().wait()
        if not self._stopping:
            raise LaunchError(self.describe_end())

    def kill(self) -> None:
        """End it and all it started at once, as a crash would: its watchers hear of it."""
        process = self._entered()
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM, the time of grace, then SIGKILL to it and to all it started."""
        process = self._process
        if process is None:
            return
        self._stopping = True
        try:
            if process.returncode is None and self._grace > 0:
                with suppress(ProcessLookupError):
                    process.terminate()
                if not await _ended_within(process, self._grace):
                    logger.warning(
                        "%s did not end within %g s of SIGTERM: killing it", self.name, self._grace
                    )
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if not await _ended_within(process, _KILL_SECONDS):
                logger.error("%s (process %d) does not die", self.name, process.pid)
        finally:
            self._lifeline.close()

    def describe_end(self) -> str:
        """Say how it ended, with the last lines of its log."""
        code = self.returncode
        if code is None:
            how = "is still running"
        elif code < 0:
            how = f"was ended by {_signal_name(-code)}"
        else:
            how = f"ended with exit code {code}"
        return f"{self.name} (process {self.pid}) {how}; {self.describe_log()}"

    def describe_log(self) -> str:
        """Return the last lines that it wrote, indented, and where the rest is."""
        lines = _tail(self.log, self._log_start)
        if not lines:
            return f"it wrote nothing to {self.log}"
        return f"the end of {self.log}:\n" + "\n".join(f"    {line}" for line in lines)

    def _entered(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise LaunchError(f"{self.name} has not been started: use it with `async with`")
        return self._process


async def _ended_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is not None


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _tail(path: Path, start: int, n_lines: int = 20) -> list[str]:
    """Last lines that were written to `path` after byte `start`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-n_lines:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
