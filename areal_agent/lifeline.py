"""A child of ours dies with its parent, whatever kills the parent.

The parent holds the write end of a pipe and hands the read end to the child: when the parent is
gone, by SIGKILL too, the kernel closes the write end and the child reads end-of-file. On Linux the
child also asks the kernel for SIGTERM at its parent's death, which arrives without the
interpreter's help, for instance while a library is being loaded. A child that leads a group of
processes may have the kernel kill them all instead.

A child calls `watch_parent` before anything else, so before its slow imports.
"""

import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn, Self

LIFELINE_ENV = "AREAL_AGENT_LIFELINE"
"""Tells the child ``<read end>:<pid of the parent>``."""

ORPHAN_EXIT_CODE = 75
"""Exit code of a child that ended because its parent was gone (EX_TEMPFAIL)."""

_PR_SET_PDEATHSIG = 1


class Lifeline:
    """The parent's side: keep it open for as long as the child should live.

    Start the child from a thread that outlives it (the event loop's): Linux takes the death of
    the starting thread for the parent's.
    """

    def __init__(self) -> None:
        self._read_end = -1
        self._write_end = -1

    def __enter__(self) -> Self:
        """Open the pipe."""
        self._read_end, self._write_end = os.pipe()
        return self

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that the child needs."""
        return {LIFELINE_ENV: f"{self._read_end}:{os.getpid()}"}

    @property
    def pass_fds(self) -> tuple[int]:
        """File descriptors that the child must inherit."""
        return (self._read_end,)

    def child_started(self) -> None:
        """Close the child's end in this process."""
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the pipe; a child that still watches it ends."""
        self.child_started()
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1


def watch_parent(*, grace_seconds: float = 2.0, whole_group: bool = False) -> bool:
    """Tie this process to the parent that started it with a `Lifeline`.

    When the parent is gone this process gets SIGTERM (perhaps twice), and `grace_seconds` later it
    is ended, whatever it is doing. Works for synchronous programs and for event loops alike.
    With `whole_group` its process group, so all that it started, is killed at once instead.

    Returns:
        False when this process was not started with a lifeline: then nothing is watched.
    """
    value = os.environ.pop(LIFELINE_ENV, None)
    if value is None:
        return False
    fd, parent = (int(part) for part in value.split(":"))
    os.set_inheritable(fd, False)
    if whole_group:
        _ask_for_the_groups_end(fd)
    else:
        _ask_for_sigterm_at_parents_death()
    if os.getppid() != parent:  # it died before we asked
        os._exit(ORPHAN_EXIT_CODE)
    # A thread, because a synchronous worker has no event loop and is busy in torch, and a daemon,
    # because `asyncio.to_thread` would be joined at exit and so keep a finished process alive.
    threading.Thread(  # noqa: TID251 - see above
        target=_end_after_parent,
        args=(fd, grace_seconds, whole_group),
        name="lifeline",
        daemon=True,
    ).start()
    return True


def _ask_for_sigterm_at_parents_death() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _ask_for_the_groups_end(fd: int) -> None:
    """Let the kernel kill our process group when the other end of the pipe `fd` is closed."""
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def _end_after_parent(fd: int, grace_seconds: float, whole_group: bool) -> NoReturn:
    while os.read(fd, 1):
        pass
    if whole_group:
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    os._exit(ORPHAN_EXIT_CODE)
