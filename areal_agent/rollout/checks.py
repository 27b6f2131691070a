"""What a finished episode's rows must also be, before a trainer or a log gets them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from areal_agent.errors import TrajectoryError
from areal_agent.rewarding import LARGEST_REWARD
from areal_agent.trajectory import Trajectory

OURS = frozenset(
    {
        "concurrency",
        "episode_seconds",
        "episodes",
        "episodes_spanning_versions",
        "output_tokens",
        "retries",
        "reward",
        "swept",
        "truncated_share",
        "zero_rewards",
    }
)
OUR_KINDS = ("dropped/", "limit/", "outcome/")
"""Metrics of a run under ``rollout/``; an episode's would take their place, or lose it."""


def check_rows(
    rows: Sequence[Trajectory],
    *,
    newest_version: int,
    vocab_size: int | None = None,
    trained: bool = True,
) -> list[Trajectory]:
    """Return the rows with metrics as floats.

    Args:
        rows: of one episode.
        newest_version: no token can have a newer one.
        vocab_size: no token id can reach it; None leaves ids unchecked.
        trained: they are for training, where no token can be greedy.

    Raises:
        TrajectoryError: a row was changed after it was made so that its lists differ in length, a
            token id is none of the model's, a reward is too large for float32, a version is from
            the future, a token to train on was greedy, a metric is not a finite number, or has the
            name of one of the run's.
    """
    for row in rows if trained else ():
        _check_sampled(row)
        _check_names(row.metrics)
    return [_checked(row, newest_version, vocab_size) for row in rows]


def _check_sampled(row: Trajectory) -> None:
    told = row.temperatures or ()
    if any(m and not t for m, t in zip(row.loss_mask, told, strict=False)):
        raise TrajectoryError(
            "a token to train on was taken greedily (temperature 0): it has no probability to "
            "train on; sample it at a temperature above 0, or leave it out of loss_mask"
        )


def _check_names(metrics: Mapping[str, Any]) -> None:
    for name in metrics:
        if name in OURS or str(name).startswith(OUR_KINDS):
            raise TrajectoryError(
                f"the metric {name!r} has the name of one that the run logs itself as "
                f"rollout/{name}: rename it"
            )


def _checked(row: Trajectory, newest_version: int, vocab_size: int | None) -> Trajectory:
    row.__post_init__()  # lists may have been changed in place since
    if abs(row.reward) > LARGEST_REWARD:
        raise TrajectoryError(
            f"expected a reward that float32 can hold, got {row.reward!r}: scale it down"
        )
    low, high = min(row.input_ids), max(row.input_ids)
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        below = "" if vocab_size is None else f" to {vocab_size - 1}"
        raise TrajectoryError(
            f"expected token ids from 0{below}, got {low if low < 0 else high}: input_ids holds "
            "the engine's own ids, prompt and reply"
        )
    if row.newest_version > newest_version:
        raise TrajectoryError(
            f"a token has weight version {row.newest_version}, but {newest_version} is the newest "
            "that there can be: pass on the engine's output_versions"
        )
    return replace(row, metrics=_numbers(row.metrics)) if row.metrics else row


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            number = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise TrajectoryError(f"expected a finite number as metric {name!r}, got {value!r}")
        out[name] = number
    return out
