"""The record of every episode: one JSON object a line, written off the hot path."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiofiles

from areal_agent.types import Episode, Interaction

SCHEMA_VERSION = 1
"""Raised whenever a field changes its meaning."""


class EpisodeRecorder:
    """Appends episodes to a JSONL file in the order they are given.

    Lines are flushed in batches; leaving the context writes what is left.
    """

    def __init__(self, path: Path, decode: Callable[[Sequence[int]], str]) -> None:
        self.path = path
        self._decode = decode
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._group = asyncio.TaskGroup()

    def record(self, episode: Episode, *, split: str, step: int) -> None:
        """Queue one episode; returns at once."""
        self._queue.put_nowait(episode_record(episode, self._decode, split=split, step=step))

    async def _write(self) -> None:
        async with aiofiles.open(self.path, "a", encoding="utf-8") as file:
            while True:
                record = await self._queue.get()
                lines: list[str] = []
                while record is not None:
                    lines.append(json.dumps(record, separators=(",", ":")))
                    if self._queue.empty():
                        break
                    record = self._queue.get_nowait()
                if lines:
                    await file.write("\n".join(lines) + "\n")
                    await file.flush()
                if record is None:
                    return

    async def __aenter__(self) -> Self:
        """Open the file."""
        await self._group.__aenter__()
        self._group.create_task(self._write(), name="episode-recorder")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what is queued and close the file, also when the run failed."""
        self._queue.put_nowait(None)
        await self._group.__aexit__(None, None, None)


def episode_record(
    episode: Episode, decode: Callable[[Sequence[int]], str], *, split: str, step: int
) -> dict[str, Any]:
    """One episode as JSON values: outcome, reward, tokens of each turn, text of the dialogue."""
    failure = episode.failure
    return {
        "schema": SCHEMA_VERSION,
        "id": episode.id,
        "prompt_id": episode.prompt_id,
        "split": split,
        "step": step,
        "outcome": episode.outcome,
        "reward": episode.reward,
        "versions": episode.versions,
        "seconds": round(episode.seconds, 4),
        "metrics": dict(episode.metrics),
        "failure": None
        if failure is None
        else {
            "place": failure.place,
            "type": failure.type,
            "message": failure.message,
            "traceback": failure.traceback,
        },
        "text": dialogue(episode.interactions, decode),
        "turns": [_turn(interaction) for interaction in episode.interactions],
    }


def dialogue(interactions: Sequence[Interaction], decode: Callable[[Sequence[int]], str]) -> str:
    """The last turn's prompt and reply as text: for an agent that only appends, everything."""
    if not interactions:
        return ""
    last = interactions[-1].response
    return decode([*last.input_tokens, *last.output_tokens])


def _turn(interaction: Interaction) -> dict[str, Any]:
    response = interaction.response
    return {
        "n_prompt": len(response.input_tokens),
        "prompt_ids": list(response.input_tokens),
        "output_ids": list(response.output_tokens),
        "logprobs": [round(value, 6) for value in response.output_logprobs],
        "versions": list(response.output_versions),
        "stop_reason": response.stop_reason,
        "sampling": None if interaction.gconfig is None else interaction.gconfig.model_dump(),
    }
