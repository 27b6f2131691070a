"""Ids of tool calls: each is new. Those of an episode repeat when it is replayed."""

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from uuid import uuid4


class CallIds:
    """Ids that follow from a seed."""

    __slots__ = ("_n", "_seed")

    def __init__(self, seed: Callable[[], int]) -> None:
        self._seed = seed  # most episodes call no tool and need none
        self._n = 0

    def new(self) -> str:
        """Return the next one."""
        self._n += 1
        name = f"{self._seed()}:{self._n}".encode("ascii")
        return f"call_{hashlib.blake2b(name, digest_size=12).hexdigest()}"


_ids: ContextVar[CallIds | None] = ContextVar("areal_agent.call_ids", default=None)


def set_call_ids(ids: CallIds) -> None:
    """Let the current task, and those that it starts, take their ids from `ids`."""
    _ids.set(ids)


def new_call_id() -> str:
    """Return an id that no other call has."""
    ids = _ids.get()
    return f"call_{uuid4().hex[:24]}" if ids is None else ids.new()
