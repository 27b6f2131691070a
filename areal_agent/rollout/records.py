"""The stream of a run's records: one JSON object a line, written off the hot path."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from areal_agent.rollout.episode_record import brief_record, episode_record, fate_record
from areal_agent.rollout.line_file import LineFile
from areal_agent.rollout.plain import any_json
from areal_agent.types import Episode

logger = logging.getLogger(__name__)

MAX_WAITING_TOKENS = 2_000_000
"""Episodes of so many tokens may wait to be written: 100 to 200 MB. What comes then is lost."""
LONG_TOKENS = 4_000
"""A longer episode is made into JSON in a thread: on the loop it would hold up others."""
CHUNK_BYTES = 1 << 18
"""Lines are written together, up to this size."""
LINGER_SECONDS = 0.1
"""What comes within this time is written together."""
RETRY_SECONDS = 1.0
"""Writing that failed is tried again after this time."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A record that is still to be made."""

    make: Callable[[], dict[str, Any]]
    tokens: int


class EpisodeRecorder:
    """Appends episodes to a JSONL file in the order in which they are given.

    Giving one takes microseconds. When the disk is full, or slower than the run, the run goes on:
    records wait, within bounds; those that come then are lost, and counted.
    """

    def __init__(
        self,
        path: Path,
        decode: Callable[[Sequence[int]], str],
        *,
        max_waiting_tokens: int = MAX_WAITING_TOKENS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.path = path
        self.lost = 0
        """Records that could not be written, since the start."""
        self._decode = decode
        self._max_waiting = max_waiting_tokens
        self._retry_seconds = retry_seconds
        self._queue: deque[_Waiting] = deque()
        self._waiting = 0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._told_lost = 0
        self._has_warned = False
        self._is_failing = False
        self._group = asyncio.TaskGroup()

    def record(self, episode: Episode, *, split: str, step: int) -> None:
        """Queue one episode; returns at once."""

        def make() -> dict[str, Any]:
            try:
                return episode_record(episode, self._decode, split=split, step=step)
            except Exception as error:  # noqa: BLE001 - users' values may do anything
                return brief_record(episode, error, split=split, step=step)

        self._put(make, _tokens(episode))

    def fate(
        self,
        fate: str,
        episodes: Sequence[str],
        *,
        prompt_id: str,
        step: int,
        version: int,
        why: str = "",
    ) -> None:
        """Queue what became of episodes that were recorded before."""
        ids = list(episodes)

        def make() -> dict[str, Any]:
            return fate_record(fate, ids, prompt_id=prompt_id, step=step, version=version, why=why)

        self._put(make, 1)

    def take_metrics(self) -> dict[str, float]:
        """Return what was counted since the last call."""
        lost, self._told_lost = self.lost - self._told_lost, self.lost
        return {"records/lost": float(lost)}

    def _put(self, make: Callable[[], dict[str, Any]], tokens: int) -> None:
        if self._queue and self._waiting + tokens > self._max_waiting:
            self._lose(1, "they come faster than they can be written")
            return
        self._queue.append(_Waiting(make, tokens))
        self._waiting += tokens
        self._wake.set()

    async def _run(self, file: LineFile) -> None:
        while True:
            await self._wake.wait()
            if not self._queue:
                if self._closing.is_set():
                    return
                self._wake.clear()
                continue
            await self._pause(LINGER_SECONDS)
            await self._write(file, *await self._chunk())

    async def _chunk(self) -> tuple[bytes, int]:
        """Make lines of what waits, up to a size; return them and how many they are."""
        lines: list[bytes] = []
        size = 0
        while self._queue and size < CHUNK_BYTES:
            one = self._queue.popleft()
            self._waiting -= one.tokens
            if one.tokens > LONG_TOKENS:
                line = await asyncio.to_thread(_line, one.make)
            else:
                line = _line(one.make)
                await asyncio.sleep(0)
            lines.append(line)
            size += len(line)
        return b"".join(lines), len(lines)

    async def _write(self, file: LineFile, lines: bytes, n: int) -> None:
        """Write, again and again until it is done or there is no time left."""
        while True:
            is_last = self._closing.is_set()
            try:
                await file.append(lines)
            except OSError as error:
                self._warn(str(error))
                if is_last:
                    self._lose(n, str(error))
                    return
                await self._pause(self._retry_seconds)
            else:
                if self._is_failing:
                    self._is_failing = False
                    logger.info("records are written again; lost so far: %d", self.lost)
                return

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for what comes after the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _warn(self, why: str) -> None:
        self._is_failing = True
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "cannot write records to %s: %s. The run goes on; records wait in memory for a "
                "while, and then are lost: records/lost counts them",
                self.path,
                why,
            )

    def _lose(self, n: int, why: str) -> None:
        self.lost += n
        self._warn(why)

    async def __aenter__(self) -> Self:
        """Start to write."""
        await self._group.__aenter__()
        self._group.create_task(self._own(), name="episode-recorder")
        return self

    async def _own(self) -> None:
        async with LineFile(self.path) as file:
            await self._run(file)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what is queued and close the file, also when the run failed."""
        self._closing.set()
        self._wake.set()
        await self._group.__aexit__(None, None, None)
        if self.lost:
            logger.warning("%d records of episodes were lost: %s lacks them", self.lost, self.path)


def _line(make: Callable[[], dict[str, Any]]) -> bytes:
    return any_json(make()) + b"\n"


def _tokens(episode: Episode) -> int:
    """How much memory an episode takes, about."""
    if episode.tape is None:
        return 1 + sum(len(one.response.output_tokens) for one in episode.interactions)
    tokens = 1
    for call in episode.tape.calls:
        if call.request is not None:
            tokens += len(call.request.input_ids)
        if call.response is not None:
            tokens += len(call.response.output_tokens)
        tokens += (len(call.args or b"") + len(call.result or b"")) // 8
    return tokens
