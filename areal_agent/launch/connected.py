"""A child process of ours that we talk to over a socket."""

import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from areal_agent.aio import open_stream
from areal_agent.children import ChildProcess


async def connected_child(
    stack: AsyncExitStack,
    name: str,
    module: str,
    args: Sequence[str] = (),
    *,
    log: Path,
    env: Mapping[str, str],
) -> tuple[ChildProcess, StreamReader, StreamWriter]:
    """Start ``python -m module FD args``, where FD is its end of the socket.

    Closing `stack` kills it and all that it started.

    Args:
        stack: owns it.
        name: what messages call it.
        module: its program; it calls `lifeline.watch_parent`.
        args: further arguments.
        log: file that its output is appended to.
        env: its environment; it gets nothing of ours besides.

    Raises:
        LaunchError: the operating system refused.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await open_stream(ours, stack)
        child = ChildProcess(
            name,
            [sys.executable, "-m", module, str(theirs.fileno()), *args],
            log=log,
            env=env,
            inherit_env=False,
            pass_fds=(theirs.fileno(),),
            stop_grace_seconds=0.0,
        )
        await stack.enter_async_context(child)
    return child, reader, writer
