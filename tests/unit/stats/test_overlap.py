"""Arithmetic on intervals, against counting whole seconds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_agent.stats.overlap import (
    Span,
    covered,
    covered_between,
    difference,
    intersection,
    overlap_possible,
    overlap_share,
    union,
)

N = 24
spans = st.lists(st.tuples(st.integers(0, N), st.integers(0, N)), max_size=8)


def seconds(of: list[Span]) -> set[int]:
    """The whole seconds that lie in `of`; a span that ends before it starts has none."""
    return {t for start, end in of for t in range(int(start), int(end))}


@given(spans)
def test_union_is_the_same_time_disjoint_and_in_order(a: list[Span]) -> None:
    got = union(a)
    assert seconds(got) == seconds(a)
    assert covered(a) == len(seconds(a))
    assert all(x[1] < y[0] for x, y in pairwise(got))
    assert union(got) == got


@given(spans, spans)
def test_intersection_is_what_lies_in_both(a: list[Span], b: list[Span]) -> None:
    got = intersection(a, b)
    assert seconds(got) == seconds(a) & seconds(b)
    assert got == union(got) == intersection(b, a)


@given(spans, spans, st.tuples(st.integers(0, N), st.integers(0, N)))
def test_share_counts_each_second_once(a: list[Span], b: list[Span], window: Span) -> None:
    for clip, inside in ((None, set(range(N))), (window, seconds([window]))):
        busy = seconds(a) & inside
        got = overlap_share(a, b, window=clip)
        if busy:
            assert got == pytest.approx(len(busy & seconds(b)) / len(busy))
        else:
            assert got is None


def test_share_of_a_small_run() -> None:
    trainer = [(10.0, 12.0), (20.0, 22.0)]
    server = [(0.0, 11.0), (5.0, 11.5), (21.0, 30.0)]
    assert overlap_share(trainer, server) == pytest.approx(2.5 / 4)
    assert overlap_share(trainer, server, window=(11.0, 21.0)) == pytest.approx(0.5 / 2)


def test_a_difference_is_what_the_second_leaves_of_the_first() -> None:
    assert difference([(0, 10)], [(2, 3), (5, 7)]) == [(0, 2), (3, 5), (7, 10)]
    assert difference([(0, 10)], [(-1, 1), (9, 12)]) == [(1, 9)]
    assert difference([(0, 1), (2, 3)], [(0, 5)]) == []


@given(spans, spans)
def test_difference_and_intersection_make_up_the_first(
    first: list[Span], second: list[Span]
) -> None:
    left, both = difference(first, second), intersection(first, second)
    assert covered(left) + covered(both) == pytest.approx(covered(first))
    assert covered(intersection(left, second)) == 0


def test_each_second_counts_for_the_first_time_that_it_lies_before() -> None:
    spans = [(0, 4), (6, 8), (20, 30)]
    assert covered_between(spans, [3, 7, 5, 9]) == [3, 2, 0, 1]


@given(spans, st.lists(st.integers(-1, N + 1), max_size=8))
def test_counting_between_times_adds_up_to_the_last_one(a: list[Span], times: list[int]) -> None:
    total = sum(covered_between(a, times))
    assert total == (covered(intersection(a, [(-1, max(times))])) if times else 0)


def possible(generate: float, train: float, *, ahead: int, n: int = 10) -> float | None:
    return overlap_possible([generate] * n, [train] * n, [0.5] * n, max_head_offpolicyness=ahead)


def test_synchronous_training_cannot_overlap() -> None:
    assert possible(3.0, 2.0, ahead=0) == 0.0


def test_slow_servers_generate_whenever_the_trainer_works_but_for_the_last_batch() -> None:
    for ahead in (1, 2, 4):
        assert possible(3.0, 2.0, ahead=ahead) == pytest.approx(9 / 10)


def test_fast_servers_cover_their_share_of_the_trainers_time() -> None:
    # One version ahead, 1 s of generation against 2 s of training: half of each but the last.
    assert possible(1.0, 2.0, ahead=1) == pytest.approx(9 * 1.0 / (10 * 2.0))


def test_servers_that_wait_for_episodes_bound_the_share() -> None:
    whole = overlap_possible([3.0] * 5, [2.0] * 5, [0.5] * 5, max_head_offpolicyness=1)
    part = overlap_possible(
        [3.0] * 5, [2.0] * 5, [0.5] * 5, max_head_offpolicyness=1, server_share=0.5
    )
    assert whole is not None
    assert part == pytest.approx(whole / 2)


def test_nothing_trained_has_no_share() -> None:
    assert overlap_possible([], [], [], max_head_offpolicyness=2) is None


@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=12), st.integers(0, 4))
def test_being_further_ahead_never_delays_and_stays_a_share(
    stages: list[tuple[int, int, int]], ahead: int
) -> None:
    generate, train, publish = (list(map(float, column)) for column in zip(*stages, strict=True))
    got = overlap_possible(generate, train, publish, max_head_offpolicyness=ahead)
    assert got is not None
    assert 0.0 <= got <= (0.0 if ahead == 0 else 1.0)
