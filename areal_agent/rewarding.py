"""What counts as a reward, and which reward functions may run on the event loop. Needs no torch."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

from areal_agent.errors import RewardError

LARGEST_REWARD = 3e38
"""Rewards are float32 in a batch; anything larger would be infinite there."""

_TEXT = (str, bytes, bytearray, memoryview)
"""`float` would read these."""

_INLINE = "__areal_agent_inline__"

F = TypeVar("F", bound=Callable[..., Any])


def as_reward(value: object) -> float:
    """Return a reward as a float: any finite number, a bool, a scalar of numpy or torch.

    Raises:
        RewardError: it is none: None, NaN, an infinity, text, a list.
    """
    try:
        scalar = getattr(value, "item", None)  # of numpy and torch
        plain: Any = scalar() if callable(scalar) else value
        number = math.nan if plain is None or isinstance(plain, _TEXT) else float(plain)
    except Exception:  # noqa: BLE001 - a user's value may do anything when it is looked at
        number = math.nan
    if not abs(number) < LARGEST_REWARD:
        raise RewardError(f"expected a finite number as reward, got {_shown(value)}")
    return number


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - repr() of a user's value may do anything
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def inline_reward(function: F) -> F:
    """Mark a plain reward function as quick: it runs on the event loop, not in a worker process.

    For what takes microseconds and cannot hang, such as comparing two short texts. Nothing limits
    its time, and while it runs, nothing else does.
    """
    setattr(function, _INLINE, True)
    return function


def is_inline(function: object) -> bool:
    """Tell whether `inline_reward` marked it."""
    return getattr(function, _INLINE, False) is True
