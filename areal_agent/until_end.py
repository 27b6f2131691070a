"""Runs a command up to its end, which comes whatever users' code has left behind.

Threads that hang, tasks that do not let themselves be cancelled, and coroutines that hold on when
they are thrown away would each keep a Python process from ending.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import typer

from areal_agent.aio import fast_loop_factory
from areal_agent.errors import ArealAgentError

CLEANUP_SECONDS = 8.0
"""How long a run may clean up after a signal; our processes end with us in any case."""

LEFT_SECONDS = 5.0
"""How long what goes on after a run's end is waited for."""


def run_until_signal(main: Coroutine[Any, Any, Any]) -> Any:
    """Run `main`; SIGINT or SIGTERM cancels it so that it cleans up, a second one ends at once.

    Exits with 128 + the signal's number when interrupted.

    Raises:
        ArealAgentError: something called ``sys.exit`` in a task of its own; the event loop lets
            that through, and it would pass for the end of the run.
    """
    received: list[int] = []

    async def supervised() -> Any:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_Threads())
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: int) -> None:
            received.append(number)
            if len(received) > 1:
                os._exit(128 + number)
            typer.echo("interrupted: cleaning up (once more to end at once)", err=True)
            task.cancel()
            loop.call_later(CLEANUP_SECONDS, os._exit, 128 + number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt, number)
        try:
            result = await main
        except BaseException as error:
            loop.call_later(LEFT_SECONDS, _leave, error)
            raise
        loop.call_later(LEFT_SECONDS, _leave, None)
        return result

    try:
        with asyncio.Runner(loop_factory=fast_loop_factory()) as runner:
            return runner.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None
    except SystemExit as error:  # nothing of ours does that within the loop
        where = "".join(traceback.format_tb(error.__traceback__)[-3:]).rstrip()
        raise ArealAgentError(
            f"a task of users' code raised SystemExit({error.code!r}), which ends the event loop "
            f"and the run with it; raise another exception there\n{where}"
        ) from None


def end_process(command: Callable[[], object]) -> None:
    """Run a command and end the process: errors of ours become one message and an exit code.

    Everything is closed by then. Taking the interpreter apart would cost seconds, and wait for
    threads of users for ever.
    """
    error: BaseException | None = None
    try:
        command()
    except BaseException as raised:  # noqa: BLE001 - the process ends with it
        error = raised
    _exit(error)


class _Threads(ThreadPoolExecutor):
    """Threads that nobody waits for at the end: whoever wanted their result has waited for it."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more."""
        super().shutdown(wait=False, cancel_futures=True)


def _leave(error: BaseException | None) -> None:
    """The run is over, and the loop still waits for what somebody has started in it."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    what = ", ".join(sorted(names)) or "an async generator"
    typer.echo(
        f"left behind, as it did not end within {LEFT_SECONDS:g} s of being cancelled: {what}",
        err=True,
    )
    _exit(error)


def _exit(error: BaseException | None) -> None:
    code = 1
    with suppress(OSError, ValueError):
        code = _told(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _told(error: BaseException | None) -> int:
    """Say what was wrong, if it was; returns the exit code."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        typer.echo(error.code, err=True)
        return 1
    if isinstance(error, ArealAgentError):
        typer.echo(f"error: {error}", err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    traceback.print_exception(error)
    return 1
