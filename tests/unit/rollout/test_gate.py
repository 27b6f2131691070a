"""The admission formula and the counters behind it."""

import asyncio

import pytest

from areal_agent.errors import ConfigError
from areal_agent.rollout.gate import Gate


def gate(*, concurrent=1000, batch=4, eta=2, group=1, version=0, accepted=0, running=0):
    made = Gate(
        max_concurrent=concurrent,
        batch_size=batch,
        max_offpolicyness=eta,
        group_size=group,
    )
    made.version = version
    made.accepted = accepted
    made.running_groups = running
    made.running_episodes = running * group
    return made


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"concurrent": 10}, 10),
        ({}, 12),
        ({"version": 5}, 32),
        ({"concurrent": 10, "running": 3}, 7),
        ({"concurrent": 100, "version": 2, "accepted": 5}, 15),
        ({"batch": 8, "eta": 0}, 8),
        ({"batch": 8, "eta": 0, "version": 5}, 48),
        ({"concurrent": 20, "batch": 8, "eta": 3, "accepted": 15}, 17),
        ({"accepted": 15}, -3),
        ({"running": 12}, 0),
        # Groups for staleness, episodes for concurrency.
        ({"concurrent": 100, "group": 8, "batch": 16}, 12),
        ({"concurrent": 1000, "group": 8, "batch": 4}, 12),
        ({"concurrent": 100, "group": 8, "running": 11}, 1),
        ({"concurrent": 100, "group": 8, "running": 12}, 0),
    ],
)
def test_capacity(facts, expected):
    assert gate(**facts).capacity == expected


@pytest.mark.parametrize("version", [0, 5, 50])
@pytest.mark.parametrize(("eta", "expected"), [(2, 12), (0, 4)])
@pytest.mark.parametrize("running", [0, 3])
async def test_recovery_admits_what_a_fresh_run_does(version, eta, expected, running):
    """S20."""
    made = gate(eta=eta, running=running)
    made.recover(version)
    admitted = 0
    while made.capacity > 0:
        await made.admit()
        admitted += 1
    assert admitted + running == expected


async def test_a_finished_episode_frees_its_place_before_its_group_ends():
    made = gate(concurrent=4, group=2)
    await made.admit()
    await made.admit()
    assert made.capacity == 0
    made.episode_done()
    assert made.capacity == 0
    made.episode_done()
    assert made.capacity == 1
    assert made.running_groups == 2


@pytest.mark.parametrize("give_back", ["accept", "reject", "sweep", "episode_done"])
def test_nothing_is_given_back_twice(give_back):
    with pytest.raises(RuntimeError, match="counted twice"):
        getattr(gate(), give_back)()


@pytest.mark.parametrize(
    "make_room",
    [
        lambda made: made.advance(1),
        lambda made: made.sweep(),
        lambda made: (made.episode_done(), made.reject()),
    ],
    ids=["advance", "sweep", "reject"],
)
async def test_a_waiting_group_starts_when_there_is_room(make_room):
    made = gate(batch=2, eta=0, accepted=1, running=1)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(made.admit())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        make_room(made)


async def test_pause_admits_nothing():
    made = gate()
    made.pause()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(made.admit())
        made.advance(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        made.resume()
    assert made.running_groups == 1


def test_versions_only_grow():
    made = gate(version=3)
    with pytest.raises(ValueError, match="3 or more, got 2"):
        made.advance(2)


def test_a_group_that_never_fits_is_refused():
    with pytest.raises(ConfigError, match=r"max_concurrent_rollouts is 4.*8 episodes"):
        Gate(max_concurrent=4, batch_size=1, max_offpolicyness=0, group_size=8)


async def test_times_with_episodes_in_flight_are_kept() -> None:
    now = [0.0]
    gate = Gate(
        max_concurrent=8, batch_size=4, max_offpolicyness=2, group_size=2, clock=lambda: now[0]
    )
    await gate.admit()
    now[0] = 1.0
    await gate.admit()
    for when in (2.0, 3.0, 4.0, 5.0):
        now[0] = when
        gate.episode_done()
    now[0] = 7.0
    assert gate.active_spans() == [(0.0, 5.0)]
    await gate.admit()
    now[0] = 9.0
    assert gate.active_spans() == [(0.0, 5.0), (7.0, 9.0)]


async def test_a_lowered_limit_cancels_nothing_and_holds_the_next():
    made = gate(concurrent=8, group=2)
    for _ in range(4):
        await made.admit()
    assert not made.held_by_limit  # the ceiling itself is reached
    made.limit = 4
    assert (made.running_episodes, made.episode_places, made.capacity) == (8, -4, -2)
    for _ in range(5):
        made.episode_done()
    assert made.held_by_limit
    assert made.capacity <= 0
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(made.admit())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        made.limit = 6
    assert made.running_episodes == 5


@pytest.mark.parametrize("limit", [1, 9])
def test_a_limit_that_holds_no_group_or_more_than_the_most_is_refused(limit):
    made = gate(concurrent=8, group=2)
    with pytest.raises(ValueError, match=rf"from 2 to 8 episodes, got {limit}"):
        made.limit = limit
    assert made.limit == 8
