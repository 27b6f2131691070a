"""How many episodes are in flight, by what the servers report."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agent.inference.base import ServerLoad
from areal_agent.rollout.concurrency import POLLS, LoadLimit, follow_load


def law(*, floor=1, ceiling=128, group=8):
    return LoadLimit(floor=floor, ceiling=ceiling, group_size=group)


def decide(made, in_flight, *backlogs, slots=64):
    """One decision, on polls with these backlogs."""
    assert len(backlogs) == POLLS
    for backlog in backlogs:
        made.observe(in_flight, ServerLoad(slots, backlog, slots))
    return made.limit


@pytest.mark.parametrize(
    ("backlogs", "limit"),
    [
        # A queue of up to half the slots keeps them full: nothing changes.
        ((0, 0, 0, 0), 128),
        ((32, 32, 32, 32), 128),
        # A longer one is cut to a quarter of the slots, by the mildest of the polls.
        ((64, 64, 64, 64), 128 - 64 + 16),
        ((64, 50, 60, 70), 128 - 50 + 16),
        # A burst is over at some poll.
        ((64, 64, 64, 0), 128),
        ((1000, -5, 1000, 1000), 128),
        # Not below the floor, whatever there is.
        ((1000, 1000, 1000, 1000), 8),
    ],
)
def test_the_limit_goes_down_with_a_queue_that_stands(backlogs, limit):
    assert decide(law(), 128, *backlogs) == limit


def test_free_slots_raise_it_again():
    made = law()
    assert decide(made, 128, 100, 100, 100, 100) == 44
    assert decide(made, 44, -10, -10, -10, 5) == 44
    assert decide(made, 44, -10, -20, -30, -40) == 44 + 10 + 16
    assert decide(made, 70, -64, -64, -64, -64) == 128


def test_no_decision_rests_on_less_than_all_its_polls():
    made = law()
    for _ in range(POLLS - 1):
        assert made.observe(128, ServerLoad(64, 64, 64)) == 128
    assert made.observe(128, ServerLoad(64, 64, 64)) == 80


@pytest.mark.parametrize(
    ("floor", "ceiling", "group", "lowest"), [(1, 128, 8, 8), (20, 128, 8, 20), (128, 128, 8, 128)]
)
def test_the_floor_is_at_least_a_group(floor, ceiling, group, lowest):
    made = law(floor=floor, ceiling=ceiling, group=group)
    assert decide(made, 128, *[10_000] * POLLS) == lowest


@settings(max_examples=200, deadline=None)
@given(
    slots=st.integers(1, 512),
    others=st.integers(0, 600),
    share=st.floats(0.05, 1.0),
    group=st.integers(1, 16),
    groups=st.integers(1, 64),
    floor=st.integers(1, 64),
    drained=st.floats(0.1, 1.0),
)
def test_under_a_constant_load_it_settles(slots, others, share, group, groups, floor, drained):
    """Episodes have a request at the servers for a share of their time; others send some, too.

    Running ones end slowly (`drained` of the excess a decision). The limit stays in its bounds
    and ends where it no longer changes, with a queue in the band or at a bound.
    """
    ceiling = group * groups
    made = LoadLimit(floor=min(floor, ceiling), ceiling=ceiling, group_size=group)
    in_flight = float(ceiling)
    limits = []
    for _ in range(200):
        requests = int(others + share * in_flight)
        running = min(requests, slots)
        for _ in range(POLLS):
            made.observe(int(in_flight), ServerLoad(running, requests - running, slots))
        assert group <= made.floor <= made.limit <= ceiling
        limits.append(made.limit)
        in_flight += (made.limit - in_flight) * (drained if in_flight > made.limit else 1.0)
        if abs(in_flight - made.limit) < 1:
            in_flight = made.limit
    assert len(set(limits[-50:])) == 1
    backlog = int(others + share * in_flight) - slots
    band = max(group, slots // 2)
    settled = -1 <= backlog <= band + 1
    assert settled or made.limit == (made.floor if backlog > 0 else ceiling)
    turns = [b - a for a, b in itertools.pairwise(limits) if b != a]
    assert all(step < 0 for step in turns) or all(step > 0 for step in turns[1:])


async def test_a_server_that_does_not_answer_is_no_news():
    """Polls without an answer neither change the limit nor count as free slots."""
    queue = ServerLoad(64, 64, 64)
    answers = [queue, None, queue, queue, None, queue, None, None]
    told, done = [], asyncio.Event()

    async def ask():
        if not answers:
            done.set()
            await asyncio.Event().wait()
        return answers.pop(0)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        following = group.create_task(
            follow_load(law(), ask=ask, in_flight=lambda: 128, apply=told.append, seconds=0.0)
        )
        await done.wait()
        following.cancel()
    assert told == [80]
