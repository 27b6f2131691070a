"""How good each row was, compared with the other episodes of its prompt.

Legend: N rows, G groups. Groups are told apart by id, never by position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from areal_agent.errors import TrajectoryError

RELATIVE_NOISE = 1e-6
"""Rewards of a group that differ by less than this share of the largest are equal."""

ABSOLUTE_NOISE = 1e-8
"""Rewards of a group that differ by less than this are equal."""


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of rows, and what there was to learn from in each group."""

    values: Tensor
    """float32 [N]: exactly 0 in a group without signal."""
    has_signal: Tensor
    """bool [N]: the row's group holds different rewards."""
    group_has_signal: Tensor
    """bool [G], in order of group ids."""


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    episode_ids: Tensor,
    *,
    normalize_by_std: bool,
    std_eps: float,
) -> GroupAdvantages:
    """Reward minus the group's mean, over the group's unbiased standard deviation if asked for.

    An episode counts once in mean and deviation, in however many rows it was cut. Statistics are
    taken in float64. A group of one episode, and one whose rewards differ by no more than float
    noise, has advantage 0.

    Args:
        rewards: [N].
        group_ids: int64 [N].
        episode_ids: int64 [N]; rows of one episode share it.
        normalize_by_std: divide by the standard deviation.
        std_eps: added to it.

    Raises:
        TrajectoryError: a reward is not finite.
    """
    _check_rewards(rewards, group_ids)
    r = rewards.double()
    _, group = torch.unique(group_ids, return_inverse=True)
    n_groups = int(group.max()) + 1 if len(group) else 0
    _, episode, n_rows = torch.unique(episode_ids, return_inverse=True, return_counts=True)
    weight = 1.0 / n_rows.double()[episode]  # [N]: sums to 1 over each episode

    def group_sum(values: Tensor) -> Tensor:
        return torch.zeros(n_groups, dtype=torch.float64).index_add_(0, group, values)

    n_episodes = group_sum(weight).round()  # [G]
    mean = group_sum(weight * r) / n_episodes
    centred = r - mean[group]
    variance = group_sum(weight * centred.square()) / (n_episodes - 1).clamp(min=1)
    zeros = torch.zeros(n_groups, dtype=torch.float64)
    highest = zeros.scatter_reduce(0, group, r, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, group, r, "amin", include_self=False)
    largest = torch.maximum(highest.abs(), lowest.abs())
    noise = (RELATIVE_NOISE * largest).clamp(min=ABSOLUTE_NOISE)
    signal = (highest - lowest > noise) & (n_episodes > 1)  # [G]
    values = centred / (variance.sqrt()[group] + std_eps) if normalize_by_std else centred
    return GroupAdvantages(
        values=torch.where(signal[group], values, 0.0).float(),
        has_signal=signal[group],
        group_has_signal=signal,
    )


def rewards_differ(rewards: Sequence[float]) -> bool:
    """Tell whether the episodes of a group can be told apart by these rewards, one of each."""
    if len(rewards) < 2:
        return False
    highest, lowest = max(rewards), min(rewards)
    largest = max(abs(highest), abs(lowest))
    return highest - lowest > max(RELATIVE_NOISE * largest, ABSOLUTE_NOISE)


def _check_rewards(rewards: Tensor, group_ids: Tensor) -> None:
    bad = torch.nonzero(~torch.isfinite(rewards)).flatten()
    if len(bad):
        row = int(bad[0])
        raise TrajectoryError(
            f"expected finite rewards, got {float(rewards[row])!r} in row {row} (group "
            f"{int(group_ids[row])}), and {len(bad) - 1} more such rows: let the reward function "
            "raise instead, so that the episode is left out"
        )
