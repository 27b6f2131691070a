"""Rows that changed, lie about versions, or carry what no float32 batch or log can hold."""

from typing import Any

import pytest

from areal_agent.errors import TrajectoryError
from areal_agent.rollout.checks import check_rows
from areal_agent.trajectory import Trajectory


def row(**changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "input_ids": [1, 2, 3],
        "loss_mask": [False, True, True],
        "logprobs": [0.0, -0.5, -0.5],
        "versions": [-1, 4, 5],
        "reward": 1.0,
    }
    return Trajectory(**values | changes)


def test_good_rows_pass_and_metrics_become_floats() -> None:
    (got,) = check_rows([row(metrics={"turns": 2, "ok": True})], newest_version=5)
    assert got.metrics == {"turns": 2.0, "ok": 1.0}
    assert all(type(value) is float for value in got.metrics.values())


def test_a_row_that_was_changed_in_place_is_refused() -> None:
    changed = row(input_ids=(ids := [1, 2, 3]))
    ids.append(7)
    with pytest.raises(TrajectoryError, match="of one length"):
        check_rows([changed], newest_version=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": 1e300}, "float32 can hold, got 1e\\+300"),
        ({"versions": [-1, 4, 999]}, "weight version 999, but 5 is the newest"),
        ({"input_ids": [1, 2, 97]}, "token ids from 0 to 96, got 97"),
        ({"input_ids": [1, -1, 3]}, "token ids from 0 to 96, got -1"),
        ({"temperatures": [1.0, 1.0, 0.0]}, "taken greedily"),
        ({"metrics": {"x": "hello"}}, "metric 'x', got 'hello'"),
        ({"metrics": {"x": float("nan")}}, "metric 'x', got nan"),
        ({"metrics": {"x": None}}, "metric 'x', got None"),
        ({"metrics": {"retries": 1}}, "logs itself as rollout/retries: rename it"),
        ({"metrics": {"outcome/ok": 1}}, "logs itself as rollout/outcome/ok: rename it"),
    ],
)
def test_what_would_poison_a_batch_or_a_log_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrajectoryError, match=message):
        check_rows([row(**changes)], newest_version=5, vocab_size=97)


def test_evaluation_may_be_greedy() -> None:
    greedy = row(temperatures=[1.0, 0.0, 0.0])
    assert check_rows([greedy], newest_version=5, trained=False) == [greedy]


def test_greedy_tokens_that_are_not_trained_on_pass() -> None:
    helped = row(loss_mask=[False, False, True], temperatures=[0.0, 0.0, 0.5])
    assert check_rows([helped], newest_version=5) == [helped]
