"""Micro-batches: every row once, within the budget."""

from hypothesis import given
from hypothesis import strategies as st

from areal_agent.backends.packing import micro_batches


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 1000))
def test_every_row_once_and_within_the_budget(lengths: list[int], max_tokens: int) -> None:
    cut = micro_batches(lengths, max_tokens)
    assert sorted(i for rows in cut for i in rows) == list(range(len(lengths)))
    for rows in cut:
        assert rows
        padded = len(rows) * max(lengths[i] for i in rows)
        assert padded <= max_tokens or len(rows) == 1


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(300, 1000))
def test_no_micro_batch_could_take_the_next_row(lengths: list[int], max_tokens: int) -> None:
    cut = micro_batches(lengths, max_tokens)
    for rows in cut[:-1]:
        assert (len(rows) + 1) * lengths[rows[0]] > max_tokens


def test_longest_first() -> None:
    assert micro_batches([3, 9, 5, 9], 18) == [[1, 3], [2, 0]]
    assert micro_batches([], 10) == []
    assert micro_batches([50, 1], 10) == [[0], [1]]
