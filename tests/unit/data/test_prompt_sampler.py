"""S22: every row once an epoch, whatever the batch size; the cursor can be taken up anywhere."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_agent.data.sampler import PromptSampler, epoch_order
from areal_agent.errors import DataError


def batches(sampler: PromptSampler, size: int) -> list[list[tuple[int, int]]]:
    return [list(b) for b in iter(lambda: list(itertools.islice(sampler, size)), [])]


def test_three_rows_in_batches_of_eight_cycle_and_then_stop() -> None:
    got = batches(PromptSampler(3, seed=1, epochs=4), 8)
    assert [len(b) for b in got] == [8, 4]
    assert sorted(got[0] + got[1]) == [(e, i) for e in range(4) for i in range(3)]


def test_the_ragged_end_of_ten_rows_goes_into_the_next_epoch() -> None:
    got = batches(PromptSampler(10, seed=1, epochs=2), 4)
    assert [len(b) for b in got] == [4, 4, 4, 4, 4]
    assert [epoch for epoch, _ in got[2]] == [0, 0, 1, 1]
    assert sorted(i for b in got for _, i in b) == sorted([*range(10)] * 2)


def test_without_epochs_it_never_ends() -> None:
    assert [e for e, _ in itertools.islice(PromptSampler(1, seed=0), 5)] == [0, 1, 2, 3, 4]


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    orders = [epoch_order(50, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert all(sorted(o) == list(range(50)) for o in orders)
    assert epoch_order(50, 2, 1) == orders[3]


def test_stopping_is_final() -> None:
    sampler = PromptSampler(2, seed=0, epochs=1)
    assert len(list(sampler)) == 2
    assert next(sampler, None) is None
    assert next(sampler, None) is None


@given(n=st.integers(1, 12), taken=st.integers(0, 40), seed=st.integers(0, 9))
def test_a_restored_sampler_goes_on_where_it_was(n: int, taken: int, seed: int) -> None:
    whole = list(itertools.islice(PromptSampler(n, seed), taken + 20))
    first = PromptSampler(n, seed)
    assert list(itertools.islice(first, taken)) == whole[:taken]
    second = PromptSampler(n, seed)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert list(itertools.islice(second, 20)) == whole[taken:]


def test_a_cursor_of_other_data_is_refused() -> None:
    state = PromptSampler(5, seed=1).state_dict()
    with pytest.raises(DataError, match="5 rows and seed 1, the dataset has 6 rows"):
        PromptSampler(6, seed=1).load_state_dict(state)
    with pytest.raises(DataError, match="seed 2"):
        PromptSampler(5, seed=2).load_state_dict(state)
    with pytest.raises(DataError, match="a sampler's state"):
        PromptSampler(5, seed=1).load_state_dict({"epoch": 0})
    with pytest.raises(DataError, match="within the dataset"):
        PromptSampler(5, seed=1).load_state_dict({**state, "position": 6})


def test_no_rows_is_refused() -> None:
    with pytest.raises(DataError, match="at least 1 row"):
        PromptSampler(0, seed=1)
