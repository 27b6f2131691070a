"""Reads a run's records, also while it goes on: one at a time, each with what became of it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from areal_agent.errors import DataError

FILE_NAME = "episodes.jsonl"

Record = dict[str, Any]

_EPISODE: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "prompt_id": str,
    "split": str,
    "step": int,
    "outcome": str,
    "reward": (int, float, type(None)),
}
"""What an episode holds at least, or its line is of something else."""

_FATE: dict[str, type | tuple[type, ...]] = {
    "fate": str,
    "episodes": list,
    "step": int,
    "version": int,
    "why": str,
}


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of an episode after it had ended."""

    name: str
    """``trained``, ``dropped`` or ``swept``."""
    step: int
    version: int
    why: str


class Records:
    """The records of one file. Nothing of it is kept but the fates."""

    def __init__(self, path: Path) -> None:
        """Take a run folder, or the file itself.

        Raises:
            DataError: there is no such file.
        """
        self.path = path / FILE_NAME if path.is_dir() else path
        if not self.path.is_file():
            raise DataError(
                f"expected a run folder with {FILE_NAME} in it, or such a file, got {str(path)!r}"
            )
        self.broken = 0
        """Lines that are no records; the unfinished one of a run that goes on is none of them."""
        self.n_episodes = 0
        """Episodes that have been read, wanted or not."""

    def fates(self) -> dict[str, Fate]:
        """What became of episodes, by id."""
        found: dict[str, Fate] = {}
        for line in self._lines():
            # The kind stands near the start; whole episodes need not be read here.
            if b'"fate"' not in line[:64] or (record := read_line(line)) is None:
                continue
            if record.get("kind") == "fate" and _is_whole(record, _FATE):
                fate = Fate(record["fate"], record["step"], record["version"], record["why"])
                found |= dict.fromkeys(map(str, record["episodes"]), fate)
        return found

    def episodes(
        self, is_wanted: Callable[[Record], bool] | None = None, *, exact: bool = False
    ) -> Iterator[Record]:
        """Yield the episodes in the order in which they ended.

        With `exact`, whole numbers of more than 64 bits stay what they are, at half the speed.
        """
        self.broken = self.n_episodes = 0
        for line in self._lines():
            record = read_line(line, exact=exact)
            kind = None if record is None else record.get("kind", "episode")
            if record is None or not _is_whole(record, _FATE if kind == "fate" else _EPISODE):
                self.broken += 1
            elif kind == "episode":
                self.n_episodes += 1
                if is_wanted is None or is_wanted(record):
                    yield record

    def _lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def read_line(line: bytes, *, exact: bool = False) -> Record | None:
    """Read one line; None when it is no record."""
    try:
        record: object = json.loads(line) if exact else orjson.loads(line)
    except ValueError:
        try:
            record = json.loads(line)  # half a surrogate pair is one that orjson refuses
        except ValueError:
            return None
    if not isinstance(record, dict):
        return None
    found = cast("Record", record)
    return found if "id" in found or found.get("kind") == "fate" else None


def _is_whole(record: Record, fields: Mapping[str, type | tuple[type, ...]]) -> bool:
    return all(isinstance(record.get(name, ...), kind) for name, kind in fields.items())
