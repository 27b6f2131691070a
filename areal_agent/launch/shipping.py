"""Reward functions and their arguments, as bytes for a worker process of this run.

Functions and classes travel by name, so that the worker imports them. Only a worker unpickles, and
only what its own parent sent through a socket that nobody else has; what it answers is JSON.
"""

import hashlib
import io
import pickle  # noqa: TID251 - see above
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from areal_agent.errors import ConfigError, RewardError
from areal_agent.registry import SCRIPT_PREFIX, resolve


@dataclass(frozen=True, slots=True)
class Shipped:
    """A function as bytes."""

    name: str
    """What messages call it."""
    key: str
    """Names it to workers: the same function has the same."""
    body: bytes


def ship(function: Callable[..., Any]) -> Shipped:
    """Return a function as bytes; objects that it holds are copied as they are now.

    Raises:
        ConfigError: a worker could not import it: a lambda, a function within a function, or one
            from a notebook.
    """
    name = called(function)
    try:
        body = _pickled(function)
    except Exception as error:
        raise ConfigError(
            f"the reward function {name} cannot run in a worker process, which has to import it: "
            f"{error}. Define it at the top level of a module or file; or make it `async def`, "
            "which runs here; or mark it with areal_agent.inline_reward, if it takes microseconds"
        ) from error
    return Shipped(name, hashlib.sha256(body).hexdigest(), body)


def packed(*things: object, name: str) -> bytes:
    """Return arguments of the function `name` as bytes.

    Raises:
        RewardError: something among them cannot leave this process.
    """
    try:
        return _pickled(things)
    except Exception as error:
        raise RewardError(
            f"an argument of the reward function {name} cannot be sent to a worker process: {error}"
        ) from error


def called(function: Callable[..., Any]) -> str:
    """Return what to call a function, a partial or an object in messages."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)


def _pickled(thing: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Writes the functions and classes of scripts as the path of the script and their name."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to import `obj`, if it is of a script."""
        if not isinstance(obj, FunctionType | type):
            return NotImplemented
        module = obj.__module__
        if module != "__main__" and not str(module).startswith(SCRIPT_PREFIX):
            return NotImplemented
        return partial(resolve, kind="rewards"), (_importable_name(obj, str(module)),)


def _importable_name(thing: Any, module_name: str) -> str:
    module = sys.modules.get(module_name)
    found: Any = module
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise pickle.PicklingError(
            f"{thing.__qualname__} is not found at the top level of its file"
        )
    spec = getattr(module, "__spec__", None)
    if module_name == "__main__" and spec is not None and not spec.name.endswith("__main__"):
        return f"{spec.name}:{thing.__qualname__}"
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py" or not path.is_file():
        raise pickle.PicklingError(f"{thing.__qualname__} is in no file")
    return f"{path.absolute()}:{thing.__qualname__}"
