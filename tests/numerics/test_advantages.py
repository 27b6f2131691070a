"""Group advantages: identity of groups, episodes of several rows, groups without signal."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from areal_agent.algorithms.advantages import GroupAdvantages, group_advantages
from areal_agent.errors import TrajectoryError


def advantages(
    rewards: list[float],
    groups: list[int] | None = None,
    episodes: list[int] | None = None,
    *,
    by_std: bool = True,
    eps: float = 1e-6,
) -> GroupAdvantages:
    n = len(rewards)
    return group_advantages(
        torch.tensor(rewards),
        torch.tensor(groups or [0] * n),
        torch.tensor(episodes or list(range(n))),
        normalize_by_std=by_std,
        std_eps=eps,
    )


@pytest.mark.parametrize(
    ("by_std", "expected"), [(True, 0.8660104), (False, 0.5)], ids=["std", "no std"]
)
def test_four_rewards(by_std: bool, expected: float) -> None:
    got = advantages([1.0, 0.0, 0.0, 1.0], by_std=by_std, eps=1e-5).values
    torch.testing.assert_close(
        got, torch.tensor([1.0, -1.0, -1.0, 1.0]) * expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    "rewards",
    [
        [1.0] * 4,
        [0.1] * 8,
        [0.5],
        [0.0, 0.0],
        [0.1, 0.1 + 1e-8, 0.1],
        [1e6, 1e6 + 0.1],
        [0.0, 1e-9],
    ],
)
@pytest.mark.parametrize("by_std", [True, False])
def test_no_signal_is_exactly_zero(rewards: list[float], by_std: bool) -> None:
    got = advantages(rewards, by_std=by_std)
    assert got.values.tolist() == [0.0] * len(rewards)
    assert not got.has_signal.any()


def test_small_true_differences_are_signal() -> None:
    got = advantages([0.5, 0.5001])
    assert got.has_signal.all()
    assert got.values[1] > 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_rewards_are_refused(bad: float) -> None:
    with pytest.raises(TrajectoryError, match=r"row 1 \(group 7\)"):
        advantages([1.0, bad, 1.0], [7, 7, 7])


def test_groups_go_by_id_not_by_place() -> None:
    mixed = advantages([1.0, 5.0, 0.0, 7.0, 6.0], [3, 9, 3, 9, 9]).values
    first = advantages([1.0, 0.0]).values
    second = advantages([5.0, 7.0, 6.0]).values
    assert mixed[[0, 2]].tolist() == first.tolist()
    assert mixed[[1, 3, 4]].tolist() == second.tolist()


def test_an_episode_counts_once_however_many_rows_it_has() -> None:
    # Episode 0 was cut into three rows; the group's rewards are still 1 and 0.
    cut = advantages([1.0, 1.0, 1.0, 0.0], episodes=[0, 0, 0, 1])
    whole = advantages([1.0, 0.0])
    torch.testing.assert_close(cut.values[[0, 3]], whole.values)
    assert cut.values[0] == cut.values[1] == cut.values[2]


def test_several_rows_of_one_episode_are_a_group_of_one() -> None:
    got = advantages([1.0, 0.0], episodes=[4, 4])
    assert got.values.tolist() == [0.0, 0.0]


def test_no_rows() -> None:
    empty: Tensor = torch.empty(0, dtype=torch.int64)
    got = group_advantages(torch.empty(0), empty, empty, normalize_by_std=True, std_eps=1e-6)
    assert got.values.shape == (0,)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=12),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_centred_and_independent_of_order(
    rewards: list[float], by_std: bool, random: object
) -> None:
    got = advantages(rewards, by_std=by_std).values
    assert torch.isfinite(got).all()
    scale = max(float(got.abs().max()), 1.0)
    assert abs(float(got.double().sum())) <= 1e-4 * scale * len(rewards)
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    again = advantages([rewards[i] for i in order], by_std=by_std).values
    torch.testing.assert_close(again, got[order], rtol=1e-5, atol=1e-6)
