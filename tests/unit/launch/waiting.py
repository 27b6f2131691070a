"""Waiting for other processes: for their end, and for what they do to files."""

import asyncio
import os
import select
from collections.abc import Callable


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Wait until process `pid` has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until another process has made `condition` true; the test's time limit ends it."""
    while not condition():  # noqa: ASYNC110 - no event of ours tells of it
        await asyncio.sleep(0.01)
