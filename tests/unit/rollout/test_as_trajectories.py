"""Every form a workflow may return, checked and converted once (S08)."""

import math

import pytest
import torch

from areal_agent.errors import TrajectoryError
from areal_agent.rollout.results import as_trajectories
from areal_agent.trajectory import NO_VERSION, Trajectory, TrajectoryGroup, collate
from areal_agent.types import Interaction, ModelResponse


def response(prompt, output, *, version=3, stop="stop", temperature=None):
    return ModelResponse(
        input_tokens=prompt,
        output_tokens=output,
        output_logprobs=[-0.5] * len(output),
        output_versions=[version] * len(output),
        stop_reason=stop,
        temperature=temperature,
    )


def call(name, prompt, output, *, parent=None, reward=None, temperature=None):
    return Interaction(
        id=name,
        parent_id=parent,
        messages=(),
        reply={},
        response=response(prompt, output, temperature=temperature),
        reward=reward,
    )


def tensors(**changes):
    values = {
        "input_ids": torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "loss_mask": torch.tensor([[0, 0, 1, 0], [0, 1, 0, 1]]),
        "logprobs": torch.tensor([[0.0, 0.0, -1.0, math.nan], [0.0, -2.0, math.nan, -3.0]]),
        "versions": torch.tensor([[-1, -1, 4, -1], [-1, 5, -1, 6]]),
        "rewards": torch.tensor([1.0, 0.25]),
    }
    values.update(changes)
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("nothing", [None, {}, [], ()])
def test_nothing_rejects(nothing):
    assert as_trajectories(nothing) is None


def test_a_batch_of_no_rows_rejects():
    empty = {key: value[:0] for key, value in tensors().items()}
    assert as_trajectories(empty) is None


def test_one_and_many():
    row = Trajectory.from_response(response([1, 2], [3]), 1)
    assert as_trajectories(row) == [row]
    assert as_trajectories([row, row]) == [row, row]
    assert type(as_trajectories(row)[0].reward) is float


def test_tensor_dict_becomes_rows_without_padding():
    first, second = as_trajectories(tensors())
    assert first == Trajectory([1, 2, 3], [False, False, True], [0.0, 0.0, -1.0], [-1, -1, 4], 1.0)
    assert list(second.input_ids) == [4, 5, 6, 7]
    assert list(second.loss_mask) == [False, True, False, True]
    assert list(second.versions) == [NO_VERSION, 5, NO_VERSION, 6]
    assert second.reward == 0.25
    assert not second.truncated


def test_tensor_dict_padded_on_the_left():
    rows = as_trajectories(
        {
            key: value.flip(1) if value.dim() == 2 else value
            for key, value in tensors(
                loss_mask=torch.tensor([[1, 0, 0, 0], [1, 0, 1, 0]]),
                logprobs=torch.full((2, 4), -1.0),
                versions=torch.full((2, 4), 2),
            ).items()
        }
    )
    assert list(rows[0].input_ids) == [3, 2, 1]
    assert list(rows[0].loss_mask) == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": None}, "lacks 'versions'"),
        ({"rewards": None}, "lacks 'rewards'"),
        ({"reward": torch.zeros(2)}, "'reward', which nothing reads"),
        ({"rewards": torch.zeros(3)}, r"rewards of shape \[2\].*got \[3\]"),
        ({"loss_mask": torch.zeros(2, 5)}, r"loss_mask of shape \[2, 4\].*got \[2, 5\]"),
        ({"input_ids": torch.tensor([1])}, r"shape \[B, T\], got \[1\]"),
        ({"loss_mask": torch.zeros(2, 4)}, "row 0 .* no sampled token"),
        ({"rewards": torch.tensor([1.0, math.nan])}, "row 1 .* finite number as reward, got nan"),
        ({"versions": torch.full((2, 4), -1)}, "row 0 .* version of 0 or more at sampled token 2"),
        ({"logprobs": torch.full((2, 4), math.inf)}, "finite logprob at sampled token 2, got inf"),
        ({"temperatures": torch.ones(2)}, r"temperatures of shape \[2, 4\].*got \[2\]"),
        (
            {"temperatures": torch.full((2, 4), -0.5)},
            "row 0 .* 0 or more at sampled token 2, got -",
        ),
        ({"temperatures": torch.full((2, 4), math.nan)}, "row 0 .* sampled token 2, got nan"),
        ({"logprobs": [1.0]}, "only tensors or only Interactions.*'logprobs'"),
    ],
)
def test_tensor_dict_says_what_is_wrong(changes, words):
    with pytest.raises(TrajectoryError, match=words):
        as_trajectories(tensors(**changes))


def test_a_tensor_dict_may_say_at_which_temperatures():
    heat = torch.tensor([[math.nan, 1.0, 0.5, -1.0], [0.0, 0.25, 9.0, 2.0]])
    rows = as_trajectories(tensors(temperatures=heat))
    assert [r.temperatures[t] for r, t in ((rows[0], 2), (rows[1], 1), (rows[1], 3))] == [
        0.5,
        0.25,
        2.0,
    ]
    batch = collate([TrajectoryGroup("p", [rows])], temperature=0.6)
    assert batch.temperatures[batch.loss_mask].tolist() == [0.5, 0.25, 2.0]
    assert as_trajectories(tensors())[0].temperatures is None


def test_rows_that_say_nothing_were_sampled_at_the_runs_temperature():
    told = Trajectory.from_response(response([1, 2], [3, 4], temperature=0.25), 1.0)
    untold = Trajectory.from_response(response([1], [3]), 1.0)
    batch = collate([TrajectoryGroup("p", [[told], [untold]])], temperature=0.75)
    assert batch.temperatures.dtype == torch.float32
    assert batch.temperatures[batch.loss_mask].tolist() == [0.25, 0.25, 0.75]


def test_each_turn_of_a_row_has_its_temperature():
    [row] = as_trajectories(
        {
            "a": call("a", [1, 2], [3], temperature=0.5),
            "b": call("b", [1, 2, 3, 9], [4, 5], parent="a", temperature=1.5),
            "c": call("c", [1, 2, 3, 9, 4, 5], [6], parent="b", reward=1.0, temperature=0.5),
        }
    )
    sampled = [t for t, m in zip(row.temperatures, row.loss_mask, strict=True) if m]
    assert sampled == [0.5, 1.5, 1.5, 0.5]


def test_turns_that_extend_share_a_row():
    rows = as_trajectories(
        {
            "a": call("a", [1, 2], [3]),
            "b": call("b", [1, 2, 3, 9], [4, 5], parent="a", reward=0.5),
        }
    )
    assert len(rows) == 1
    assert list(rows[0].input_ids) == [1, 2, 3, 9, 4, 5]
    assert list(rows[0].loss_mask) == [False, False, True, False, True, True]
    assert rows[0].reward == 0.5


def test_branches_train_each_sampled_token_once():
    rows = as_trajectories(
        {
            "a": call("a", [1, 2], [3]),
            "b": call("b", [1, 2, 3], [4], parent="a", reward=1.0),
            "c": call("c", [1, 2, 3], [5], parent="a", reward=0.0),
        }
    )
    assert [list(row.input_ids) for row in rows] == [[1, 2, 3, 4], [1, 2, 3, 5]]
    assert [sum(row.loss_mask) for row in rows] == [2, 1]
    assert [row.reward for row in rows] == [1.0, 0.0]


def test_turns_with_rewards_of_their_own_stay_apart():
    rows = as_trajectories(
        {
            "a": call("a", [1, 2], [3], reward=0.1),
            "b": call("b", [1, 2, 3], [4], parent="a", reward=1.0),
        }
    )
    assert [(list(row.input_ids), row.reward) for row in rows] == [
        ([1, 2, 3], 0.1),
        ([1, 2, 3, 4], 1.0),
    ]
    assert [sum(row.loss_mask) for row in rows] == [1, 1]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("text", "expected a Trajectory.*got str 'text'"),
        ([1], "at place 0 of the list, got int 1"),
        ({"a": 1}, "only tensors or only Interactions, got int 1 at key 'a'"),
        ({"a": call("a", [1], [2])}, "'a' ends a row but has no reward"),
        ({"a": call("a", [], [2], reward=1)}, "'a': token 0 is marked as sampled"),
        (
            {"a": call("a", [1], [2]), "b": call("b", [7], [8], parent="a", reward=1.0)},
            "'b': turn 1 does not extend",
        ),
        (
            {
                "a": call("a", [1], [2], temperature=1.0),
                "b": call("b", [1, 2], [8], parent="a", reward=1.0),
            },
            "turn 1 does not say at which temperature it was sampled, and turn 0 does",
        ),
        (Trajectory([1, 2], [False, True], [0, 0], [0, 0], "high"), "number as reward.*'high'"),
        (Trajectory([1, -2], [False, True], [0, 0], [0, 0], 1), "token ids of 0 or more, got -2"),
    ],
)
def test_other_mistakes_are_named(result, words):
    with pytest.raises(TrajectoryError, match=words):
        as_trajectories(result)
