"""Rewards over conversation trees, against values worked out by hand."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from areal_agent.errors import RewardError
from areal_agent.gateway.conversation import Turn
from areal_agent.gateway.rewards import assign, ends, interactions, returns
from areal_agent.rewarding import as_reward
from areal_agent.rollout.results import as_trajectories
from areal_agent.types import ModelResponse


def tree(**parents: str | None) -> list[Turn]:
    """Turns by name, each with the name of the one that it goes on from; all of two tokens."""
    turns: dict[str, Turn] = {}
    for i, (name, parent_name) in enumerate(parents.items()):
        parent = None if parent_name is None else turns[parent_name]
        before = parent.response if parent else None
        prompt = [*before.input_tokens, *before.output_tokens, 1] if before else [1]
        response = ModelResponse(prompt, [10 + i, 99], [-0.5] * 2, [0] * 2, "stop")
        turns[name] = Turn(name, parent, [], None, {"role": "assistant"}, response, delivered=True)
        if parent is not None:
            parent.children.append(turns[name])
    return list(turns.values())


CHAIN: dict[str, str | None] = {"a": None, "b": "a", "c": "b"}
FORK: dict[str, str | None] = {"a": None, "b": "a", "c": "a", "d": "b"}
CHOICES: dict[str, str | None] = {"a": None, "b": None, "c": None, "d": "b"}


@pytest.mark.parametrize(
    ("shape", "value", "discount", "worked"),
    [
        # G_c = 1, G_b = .5 G_c, G_a = .5 G_b
        (CHAIN, 1.0, 0.5, {"a": 0.25, "b": 0.5, "c": 1.0}),
        (CHAIN, 1.0, 1.0, {"a": 1.0, "b": 1.0, "c": 1.0}),
        (CHAIN, 1.0, 0.0, {"a": 0.0, "b": 0.0, "c": 1.0}),
        # Each turn its own: c = 4, b = 2 + .5 * 4, a = 1 + .5 * 4
        (CHAIN, [1, 2, 4], 0.5, {"a": 3.0, "b": 4.0, "c": 4.0}),
        # Only the middle one is named: what comes after it earned nothing.
        (CHAIN, {"b": 2}, 0.5, {"a": 1.0, "b": 2.0}),
        (CHAIN, {"a": -1.0, "c": 8.0}, 0.5, {"a": 1.0, "b": 4.0, "c": 8.0}),
        # d = c = 1, b = .5, a = .5 * (.5 + 1) / 2
        (FORK, 1.0, 0.5, {"a": 0.375, "b": 0.5, "c": 1.0, "d": 1.0}),
        # c has no reward: it does not weigh in the mean.
        (FORK, {"d": 1.0}, 0.5, {"a": 0.25, "b": 0.5, "d": 1.0}),
        # c has one of 0: it does.
        (FORK, {"d": 1.0, "c": 0.0}, 0.5, {"a": 0.125, "b": 0.5, "c": 0.0, "d": 1.0}),
        (FORK, {"d": 1.0, "c": 3.0, "a": 10.0}, 1.0, {"a": 12.0, "b": 1.0, "c": 3.0, "d": 1.0}),
        # Three choices, one of them gone on from.
        (CHOICES, 1.0, 0.5, {"a": 1.0, "b": 0.5, "c": 1.0, "d": 1.0}),
        (CHOICES, {"d": 1.0, "c": 0.2}, 0.5, {"b": 0.5, "c": 0.2, "d": 1.0}),
        (CHOICES, None, 0.5, {}),
    ],
)
def test_returns_are_those_worked_out_by_hand(
    shape: dict[str, str | None], value: Any, discount: float, worked: dict[str, float]
) -> None:
    turns = tree(**shape)
    assign(turns, value)
    assert returns(turns, discount=discount) == pytest.approx(worked)


def test_none_leaves_rewards_that_were_set_on_the_way() -> None:
    turns = tree(**CHAIN)
    turns[1].reward = 2.0
    assign(turns, None)
    assert returns(turns, discount=0.5) == {"a": 1.0, "b": 2.0}


def test_one_number_is_for_every_end_and_leaves_others_alone() -> None:
    turns = tree(**FORK)
    turns[0].reward = 5.0
    assign(turns, 1)
    assert [turn.id for turn in ends(turns)] == ["c", "d"]
    assert [turn.reward for turn in turns] == [5.0, None, 1.0, 1.0]


def test_a_turn_whose_only_child_never_arrived_is_an_end() -> None:
    turns = tree(**CHAIN)
    arrived = turns[:2]
    assign(arrived, 1.0)
    assert returns(arrived, discount=0.5) == {"a": 0.5, "b": 1.0}
    assert turns[2].reward is None
    assert list(interactions(arrived, discount=0.5, style="concat")) == ["a", "b"]


def test_a_turn_that_goes_on_from_one_that_never_arrived_makes_its_own_row() -> None:
    a, b, c = tree(**CHAIN)
    assign([a, c], 1.0)
    rows = as_trajectories(interactions([a, c], discount=1.0, style="concat"))
    assert rows is not None
    assert [sum(row.loss_mask) for row in rows] == [2, 2]
    assert list(rows[1].input_ids) == [*c.response.input_tokens, *c.response.output_tokens]
    assert b.reward is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (False, 0.0),
        (-0.5, -0.5),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7.0),
        (np.bool_(True), 1.0),
        (np.array(2.0), 2.0),
        (torch.tensor(1.5), 1.5),
        (torch.tensor(2), 2.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
    ],
)
def test_any_finite_number_is_a_reward(value: object, number: float) -> None:
    assert as_reward(value) == number
    assert type(as_reward(value)) is float
    turns = tree(**CHAIN)
    assign(turns, value)
    assert returns(turns, discount=1.0)["a"] == number


NONE_OF_THEM = [
    math.nan,
    math.inf,
    -math.inf,
    1e39,
    10**400,
    "1.0",
    b"1",
    bytearray(b"1"),
    1j,
    object(),
    np.float32("nan"),
    np.array([1.0, 2.0]),
    np.array("1.0"),
    torch.tensor(float("inf")),
    torch.tensor([1.0, 2.0]),
    torch.tensor([]),
]


@pytest.mark.parametrize("value", NONE_OF_THEM, ids=lambda v: f"{type(v).__name__} {v!r:.20}")
def test_what_is_no_finite_number_is_refused_and_never_zero(value: object) -> None:
    with pytest.raises(RewardError, match="expected a finite number"):
        assign(tree(**CHAIN), value)
    with pytest.raises(RewardError, match="expected a finite number"):
        assign(tree(**CHAIN), {"b": value})
    with pytest.raises(RewardError, match="expected a finite number"):
        assign(tree(**CHAIN), [1.0, value, 1.0])


@pytest.mark.parametrize("value", [[1.0, None, 1.0], {"a": None}])
def test_none_among_rewards_is_refused(value: object) -> None:
    with pytest.raises(RewardError, match="got None"):
        assign(tree(**CHAIN), value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"z": 1.0}, r"'z', expected one of \['a', 'b', 'c'\]"),
        ({0: 1.0}, "interaction 0"),
        ([1.0, 2.0], "each of 3 turns, got 2"),
        ([], "each of 3 turns, got 0"),
    ],
)
def test_rewards_for_turns_that_there_are_not_are_refused(value: object, message: str) -> None:
    turns = tree(**CHAIN)
    with pytest.raises(RewardError, match=message):
        assign(turns, value)


@pytest.mark.parametrize("value", [{"a": 1.0, "z": 1.0}, {"a": 1.0, "b": "x"}, [1.0, "x", 1.0]])
def test_refused_rewards_leave_all_turns_as_they_were(value: object) -> None:
    turns = tree(**CHAIN)
    with pytest.raises(RewardError):
        assign(turns, value)
    assert [turn.reward for turn in turns] == [None] * 3


def rows(shape: dict[str, str | None], value: object, discount: float, style: Any) -> Any:
    """(sampled tokens, reward) of each row."""
    turns = tree(**shape)
    assign(turns, value)
    made = as_trajectories(interactions(turns, discount=discount, style=style)) or []
    return [
        ([t for t, on in zip(r.input_ids, r.loss_mask, strict=True) if on], r.reward) for r in made
    ]


def test_concat_joins_turns_of_one_return_and_individual_none() -> None:
    a, b, c, d = [10, 99], [11, 99], [12, 99], [13, 99]
    assert rows(CHAIN, 1.0, 1.0, "concat") == [(a + b + c, 1.0)]
    assert rows(CHAIN, 1.0, 1.0, "individual") == [(a, 1.0), (b, 1.0), (c, 1.0)]
    # Turns of different returns cannot share a row.
    assert rows(CHAIN, 1.0, 0.5, "concat") == [(a, 0.25), (b, 0.5), (c, 1.0)]
    # The first branch takes the common part, the other one starts a row.
    assert rows(FORK, 1.0, 1.0, "concat") == [(a + b + d, 1.0), (c, 1.0)]
    assert rows(FORK, {"d": 1.0, "c": 0.0}, 1.0, "concat") == [
        (a, 0.5),
        (b + d, 1.0),
        (c, 0.0),
    ]
    assert rows(FORK, {"d": 1.0}, 1.0, "concat") == [(a + b + d, 1.0)]
    assert rows(CHOICES, 1.0, 1.0, "concat") == [(a, 1.0), (b + d, 1.0), (c, 1.0)]
