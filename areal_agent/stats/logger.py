"""The metrics of each step, one JSON object a line."""

import asyncio
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from areal_agent.aio import run_shielded

logger = logging.getLogger(__name__)

_OWN_KEYS = ("epoch", "step", "global_step", "time")


class StatsLogger:
    """Appends to ``metrics.jsonl``: one line per global step, the first is 0, each once.

    A file that is there already is continued: a line that was cut short is removed, and steps that
    it has are not written again. A full disk costs a warning, not the run; what could not be
    written is tried again with the next step.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_step = -1
        """Global step of the last line; -1 when there is none."""
        self._seen_at_start = -1
        self._file: BinaryIO | None = None
        self._pending = b""

    async def __aenter__(self) -> Self:
        """Open the file."""
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what is pending and close the file, also when the run failed."""
        await run_shielded(asyncio.to_thread(self._close))

    async def commit(
        self, epoch: int, step: int, global_step: int, data: Mapping[str, float | None]
    ) -> None:
        """Write the metrics of one step; on the disk when this returns.

        Args:
            epoch: the epoch, from 0.
            step: the step within the epoch, from 0.
            global_step: the step within the run, from 0; rises with each commit.
            data: the metrics. Those that are not finite are written as null.

        Raises:
            ValueError: `global_step` does not rise, or `data` has a key of ours.
        """
        clash = [key for key in _OWN_KEYS if key in data]
        if clash:
            raise ValueError(f"expected metrics without {', '.join(_OWN_KEYS)}, got {clash!r}")
        if global_step <= self._seen_at_start:
            logger.info("%s has step %d already: not written again", self.path, global_step)
            return
        if global_step <= self.last_step:
            raise ValueError(
                f"expected a global_step above {self.last_step}, got {global_step}: commit each "
                "step once, after its evaluation"
            )
        self.last_step = global_step
        line = {"epoch": epoch, "step": step, "global_step": global_step, "time": time.time()}
        text = json.dumps(line | {key: _finite(value) for key, value in data.items()})
        self._pending += text.encode() + b"\n"
        await run_shielded(asyncio.to_thread(self._write))

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        self._file.seek(0)
        text = self._file.read()
        end = text.rfind(b"\n") + 1
        self._file.truncate(end)
        steps = [_step_of(line) for line in text[:end].splitlines()]
        self.last_step = self._seen_at_start = max(steps, default=-1)

    def _write(self) -> None:
        if self._file is None:
            raise ValueError(f"{self.path} is not open: use the logger with `async with`")
        try:
            while self._pending:
                n = self._file.write(self._pending)
                self._pending = self._pending[n:]
        except OSError as error:
            logger.warning("metrics could not be written to %s: %s", self.path, error)

    def _close(self) -> None:
        if self._file is None:
            return
        try:
            self._write()
            os.fsync(self._file.fileno())
        except OSError as error:
            logger.warning("metrics may not be on the disk: %s", error)
        finally:
            self._file.close()


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _step_of(line: bytes) -> int:
    try:
        row: Any = json.loads(line)
        return int(row["global_step"])
    except (ValueError, KeyError, TypeError):
        return -1
