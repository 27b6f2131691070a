"""What a workflow may return, and how it becomes rows: checked once, at the edge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from areal_agent.errors import RewardError, TrajectoryError
from areal_agent.rewarding import as_reward
from areal_agent.trajectory import NO_VERSION, Trajectory
from areal_agent.types import Interaction, Score

EpisodeResult = (
    Trajectory
    | Sequence[Trajectory]
    | Mapping[str, Tensor]
    | Mapping[str, Interaction]
    | Score
    | None
)
"""Everything `RolloutWorkflow.arun_episode` may return."""


def as_trajectories(result: object) -> list[Trajectory] | None:
    """Check what a workflow returned and convert it, once, at the edge.

    Accepts a `Trajectory`, a list of them, a tensor dict (``input_ids``, ``attention_mask``,
    ``loss_mask``, ``logprobs``, ``versions`` [B, T]; ``rewards`` [B]; ``temperatures`` [B, T] if
    they are not the run's; ``truncated`` [B] if known), a dict of `Interaction`s with rewards, or
    None.

    An interaction that extends its parent joins the parent's row, unless another one did so
    already or the parent earned a different reward: then it starts a row of its own. Each sampled
    token is trained on in exactly one row.

    Returns:
        The rows, or None when the episode is rejected (None, or nothing in it).

    Raises:
        TrajectoryError: naming the key, what was expected and what was got.
    """
    if result is None:
        return None
    if isinstance(result, Trajectory):
        return [_checked(result, "the trajectory")]
    if isinstance(result, Mapping):
        return _from_mapping(cast("Mapping[object, object]", result)) if result else None
    if isinstance(result, list | tuple):
        return [_item(i, row) for i, row in enumerate(cast("list[object]", result))] or None
    if isinstance(result, Score):
        raise TrajectoryError("a Score has no tokens to train on: it is for evaluation only")
    raise TrajectoryError(
        "expected a Trajectory, a list of them, a dict of tensors, a dict of Interactions or None "
        f"from arun_episode, got {_show(result)}"
    )


def _item(i: int, row: object) -> Trajectory:
    if not isinstance(row, Trajectory):
        raise TrajectoryError(f"expected a Trajectory at place {i} of the list, got {_show(row)}")
    return _checked(row, f"trajectory {i}")


def _show(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def _checked(row: Trajectory, name: str) -> Trajectory:
    """Refuse values that would poison a batch; turn a reward of any number type into a float."""
    try:
        reward = as_reward(row.reward)
    except RewardError as error:
        raise TrajectoryError(
            f"{name}: {error}: raise RewardError or return None when there is no score"
        ) from error
    if min(row.input_ids) < 0:
        raise TrajectoryError(f"{name}: expected token ids of 0 or more, got {min(row.input_ids)}")
    for t, sampled in enumerate(row.loss_mask):
        if sampled and not math.isfinite(row.logprobs[t]):
            raise TrajectoryError(
                f"{name}: expected a finite logprob at sampled token {t}, got {row.logprobs[t]!r}"
            )
        if sampled and row.versions[t] < 0:
            raise TrajectoryError(
                f"{name}: expected a weight version of 0 or more at sampled token {t}, got "
                f"{row.versions[t]!r}: pass on the engine's output_versions"
            )
    told = row.temperatures or ()
    for t, (sampled, temperature) in enumerate(zip(row.loss_mask, told, strict=False)):
        if sampled and not 0 <= temperature < math.inf:
            raise TrajectoryError(
                f"{name}: expected a temperature of 0 or more at sampled token {t}, got "
                f"{temperature!r}"
            )
    return replace(row, reward=reward) if type(row.reward) is not float else row


def _from_mapping(result: Mapping[object, object]) -> list[Trajectory] | None:
    kind = Tensor if any(isinstance(v, Tensor) for v in result.values()) else Interaction
    for key, value in result.items():
        if not isinstance(value, kind):
            raise TrajectoryError(
                "expected a dict of only tensors or only Interactions, got "
                f"{_show(value)} at key {key!r}"
            )
    if kind is Tensor:
        return _from_tensors(cast("Mapping[str, Tensor]", result))
    return _from_interactions(cast("Mapping[str, Interaction]", result))


_PER_TOKEN = ("input_ids", "attention_mask", "loss_mask", "logprobs", "versions")
_NEEDED = (*_PER_TOKEN, "rewards")
_KNOWN = (*_NEEDED, "temperatures", "truncated")


def _from_tensors(result: Mapping[str, Tensor]) -> list[Trajectory] | None:
    if unknown := [key for key in result if key not in _KNOWN]:
        raise TrajectoryError(
            f"the tensor dict has the key {unknown[0]!r}, which nothing reads: leave it out; known "
            f"are {', '.join(_KNOWN)}"
        )
    if missing := [key for key in _NEEDED if key not in result]:
        raise TrajectoryError(
            f"the tensor dict lacks {missing[0]!r}, got {sorted(result)}: training needs "
            f"{', '.join(_NEEDED)}"
        )
    shape = tuple(result["input_ids"].shape)
    if len(shape) != 2:
        raise TrajectoryError(f"expected input_ids of shape [B, T], got {list(shape)}")
    for key, tensor in result.items():
        expected = shape[:1] if key in ("rewards", "truncated") else shape
        if tuple(tensor.shape) != expected:
            raise TrajectoryError(
                f"expected {key} of shape {list(expected)} like input_ids {list(shape)}, got "
                f"{list(tensor.shape)}"
            )
    truncated = result.get("truncated", torch.zeros(shape[0], dtype=torch.bool))
    told = result.get("temperatures")
    rows: list[Trajectory] = []
    for i in range(shape[0]):
        keep = result["attention_mask"][i].bool()
        ids, _, mask, logprobs, versions = (
            cast("list[Any]", result[key][i][keep].tolist()) for key in _PER_TOKEN
        )
        try:
            row = Trajectory(
                input_ids=[int(token) for token in ids],
                loss_mask=[bool(m) for m in mask],
                logprobs=logprobs,
                versions=[int(v) if m else NO_VERSION for v, m in zip(versions, mask, strict=True)],
                reward=float(result["rewards"][i]),
                truncated=bool(truncated[i]),
                temperatures=None if told is None else told[i][keep].tolist(),
            )
        except TrajectoryError as error:
            raise TrajectoryError(f"row {i} of the tensor dict: {error}") from error
        rows.append(_checked(row, f"row {i} of the tensor dict"))
    return rows or None


def _from_interactions(result: Mapping[str, Interaction]) -> list[Trajectory]:
    chains: list[list[Interaction]] = []
    ending: dict[str, list[Interaction]] = {}
    for call in result.values():
        chain = ending.pop(call.parent_id, None) if call.parent_id is not None else None
        if chain is None or chain[-1].reward not in (None, call.reward):
            chain = []
            chains.append(chain)
        chain.append(call)
        ending[call.id] = chain
    rows: list[Trajectory] = []
    for chain in chains:
        last = chain[-1]
        if last.reward is None:
            raise TrajectoryError(
                f"interaction {last.id!r} ends a row but has no reward: set one on it"
            )
        try:
            row = Trajectory.from_turns([call.response for call in chain], last.reward)
        except TrajectoryError as error:
            raise TrajectoryError(f"interaction {last.id!r}: {error}") from error
        rows.append(_checked(row, f"interaction {last.id!r}"))
    return rows
