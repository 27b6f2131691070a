"""A run that makes no progress is reported, acted upon, and ended; one that does is left alone."""

import asyncio
import json
import logging

import pytest
from rollout_support import Calls, OneCall, settle
from supervisor_support import Supervised

from areal_agent.aio import task_group
from areal_agent.config.rollout_limits import GroupConfig, LimitsConfig
from areal_agent.errors import StallError
from areal_agent.rollout.deadlines import Waits
from areal_agent.rollout.evaluate import run_all
from areal_agent.rollout.live import LiveEpisode, doing, enter_episode, list_episodes
from areal_agent.rollout.stall_report import StallReport
from areal_agent.testing.fakes import FakeEngine


def hangs(times, *, samples=(1,), stubborn=False):
    """A workflow whose `samples` wait for ever in their first `times` tries."""
    tries = {}

    async def a_tool_that_never_answers():
        with doing("the tool search"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if stubborn:
                    await asyncio.Event().wait()
                raise

    async def work(engine, data):
        from areal_agent.rollout import context

        member = context.get().episode_id.split("~")[0]
        tries[member] = tries.get(member, 0) + 1
        if int(member.split(":")[-1]) in samples and tries[member] <= times:
            await a_tool_that_never_answers()
        return await OneCall().arun_episode(engine, data)

    return Calls(work)


async def test_a_stuck_episode_is_reported_cancelled_and_run_again(tmp_path, caplog):
    run = Supervised(tmp_path / "stall.json")
    ended = []
    async with (
        asyncio.timeout(20),
        run.running(hangs(times=1), consumer_batch_size=2, on_episode=ended.append) as executor,
    ):
        await settle()
        assert len(executor._buffer) == 0
        await run.look_after(1)
        await run.look_after(98)
        assert not caplog.records
        await run.look_after(2)
        (record,) = caplog.records
        text = record.getMessage()
        assert record.levelno == logging.WARNING
        assert "no progress for 101 s" in text
        assert "rollouts: batch 0, for 101 s so far (watched by the supervisor)" in text
        assert "2 episodes are running" in text
        assert "0:0:1: 101 s old, has waited 101 s for the tool search" in text
        assert "a_tool_that_never_answers (" in text
        assert "test_supervisor.py" in text
        await run.look_after(200)
        batch = await executor.next_batch()
    assert [len(group.episodes) for group in batch.groups] == [2, 2]
    cancelled = [e for e in ended if e.outcome == "cancelled"][:2]
    assert {e.id for e in cancelled} == {"0:0:1", "0:1:1"}
    assert all("it waited for the tool search" in e.failure.message for e in cancelled)
    assert "rollout.supervisor.cancel_seconds" in cancelled[0].failure.message
    assert {run.episode.id for g in batch.groups for run in ()} == set()
    assert {e.id for e in batch.episodes} == {"0:0:0", "0:0:1~1", "0:1:0", "0:1:1~1"}
    report = StallReport.from_json((tmp_path / "stall.json").read_bytes())
    assert report.actions == ["after 301 s 0:0:1, 0:1:1 were cancelled, to be run again"]


async def test_what_gets_stuck_again_is_given_up_and_the_others_are_the_group(tmp_path):
    """However often the group's policy would run it again."""
    run = Supervised(tmp_path / "stall.json")
    policy = GroupConfig(retries=50, min_size=2)
    async with (
        asyncio.timeout(20),
        run.running(hangs(times=99), consumer_batch_size=2, group_size=3, group=policy) as executor,
    ):
        await settle()
        await run.look_after(0)
        await run.look_after(300)
        await settle()
        assert executor.stats().buffered == 0
        await run.look_after(300)
        batch = await executor.next_batch()
        await run.look_after(300)  # the batch is progress: nothing is cancelled, nothing ends
    assert [len(group.episodes) for group in batch.groups] == [2, 2]


async def test_the_run_ends_with_a_report_that_says_what_it_waited_for(tmp_path):
    run = Supervised(tmp_path / "stall.json")
    run.supervisor.parts["servers"] = lambda: ["http://somewhere: up"]
    run.supervisor.parts["broken"] = lambda: 1 / 0

    async def stall():
        async with asyncio.timeout(20), run.running(hangs(times=99, samples=(0, 1))):
            for _ in range(50):
                await settle()
                await run.look_after(100)

    with pytest.raises(StallError) as caught:
        await stall()
    message = str(caught.value)
    assert message.startswith(
        "the run made no progress for 1000 s (rollout.supervisor.end_seconds)"
    )
    assert "it waited for rollouts, batch 0; the report is in " in message
    assert caught.value.exit_code == 4
    assert caught.value.path == str(tmp_path / "stall.json")
    report = json.loads((tmp_path / "stall.json").read_text())
    assert report["waits"][0]["owner"] == "rollouts"
    assert report["parts"]["servers"] == ["http://somewhere: up"]
    assert "ZeroDivisionError" in report["parts"]["broken"][0]
    assert [action.split(" ")[1] for action in report["actions"]] == ["300", "600", "900"]
    assert (tmp_path / "stall.json").stat().st_mode & 0o777 == 0o600


async def test_an_evaluation_goes_on_without_what_is_stuck(tmp_path):
    run = Supervised(tmp_path / "stall.json")
    ends = []

    async def evaluate():
        waiting = run.waits.until("evaluation", "at step 3")
        async with asyncio.timeout(20), waiting:
            return await run_all(
                FakeEngine(),
                hangs(times=99, samples=(1, 3)),
                [{}] * 6,
                max_concurrent=3,
                limits=LimitsConfig(),
                seed=1,
                progress=lambda done, total: ends.append(done),
            )

    with list_episodes(run.episodes):
        async with task_group() as group:
            evaluation = group.create_task(evaluate())
            await settle()
            assert len(ends) == 4
            await run.look_after(0)
            await run.look_after(300)
    outcomes = [episode.outcome for episode in evaluation.result()]
    assert outcomes == ["ok", "cancelled", "ok", "cancelled", "ok", "ok"]


async def test_a_run_that_makes_progress_is_left_alone_however_long_it_takes(tmp_path, caplog):
    run = Supervised(tmp_path / "stall.json")
    step = [0]
    run.supervisor.facts = lambda: {"a step was finished": step[0]}
    async with run.waits.until("the trainer", "update 0"):
        for step[0] in range(100):
            await run.look_after(99)
        assert run.supervisor.report("asked").last_progress == "a step was finished"
    assert not caplog.records


async def test_servers_that_sample_are_progress(tmp_path, caplog):
    """One long reply, of which nothing is heard before its end."""
    run = Supervised(tmp_path / "stall.json")
    tokens = [0]
    asked = []

    async def sampled():
        asked.append(run.supervisor.quiet_seconds)
        return tokens[0]

    run.supervisor.sampled = sampled
    async with run.waits.until("rollouts", "batch 0"):
        for _ in range(40):
            tokens[0] += 1
            await run.look_after(40)
        assert not caplog.records
        assert min(asked) >= 50  # servers are asked only when nothing else has happened
        for _ in range(4):
            await run.look_after(40)
        assert len(caplog.records) == 1


async def test_nobody_waits_or_somebody_outside_is_waited_for(tmp_path, caplog):
    run = Supervised(tmp_path / "stall.json")
    await run.look_after(5000)
    episode = LiveEpisode("0:0:0", "0:0")
    with list_episodes(run.episodes):
        enter_episode(episode)
    async with run.waits.until("rollouts", "batch 0"):
        with doing("an agent from elsewhere", outside=True):
            await run.look_after(5000)
            await run.look_after(5000)
        assert not caplog.records
        await run.look_after(200)
        assert "0:0:0" in caplog.text


async def test_what_has_a_deadline_of_its_own_ends_by_that(tmp_path, caplog):
    run = Supervised(tmp_path / "stall.json")

    async def update():
        async with run.waits.until("the trainer", "update 3", 0.05, setting="actor.some_seconds"):
            await run.look_after(0)
            await run.look_after(200)
            assert not caplog.records  # it may just be slow
            await run.look_after(20_000)  # it is reported; the run goes on
            await asyncio.Event().wait()

    with pytest.raises(StallError) as caught:
        await update()
    assert str(caught.value) == (
        "the run waited for the trainer, update 3, for longer than 0.05 s (actor.some_seconds); "
        f"the report is in {tmp_path / 'stall.json'}"
    )
    report = StallReport.from_json((tmp_path / "stall.json").read_bytes())
    assert [wait["name"] for wait in report.waits] == ["update 3"]
    assert len(caplog.records) == 2


async def test_what_follows_a_long_wait_has_all_the_time(tmp_path):
    """The start may take longer than a run may be without progress."""
    run = Supervised(tmp_path / "stall.json")
    await run.look_after(0)
    async with run.waits.until("servers", "their start", 9000):
        await run.look_after(2000)
    async with run.waits.until("evaluation", "before training"):
        await run.look_after(0)
        assert run.supervisor.quiet_seconds < 1
        with pytest.raises(StallError):
            await run.look_after(1000)


async def test_many_that_are_cancelled_at_once_are_run_again_all_the_same(tmp_path):
    """That they hung is one event; the budget for failures in a row is for those that come back."""
    run = Supervised(tmp_path / "stall.json")
    async with (
        asyncio.timeout(20),
        run.running(
            hangs(times=1, samples=range(4)),
            consumer_batch_size=2,
            group_size=4,
            max_consecutive_failures=3,
        ) as executor,
    ):
        await settle()
        await run.look_after(0)
        await run.look_after(300)
        batch = await executor.next_batch()
    assert [len(group.episodes) for group in batch.groups] == [4, 4]


async def test_a_wait_passes_on_what_is_not_its_own():
    waits = Waits()
    with pytest.raises(TimeoutError):
        async with waits.until("the log", "notes", 60):
            raise TimeoutError
    with pytest.raises(StallError, match=r"^the worker hangs$"):
        async with waits.until("the trainer", "an export"):
            raise StallError("the worker hangs")
    assert waits.open == []


async def test_the_watch_ends_the_run_it_watches(tmp_path):
    run = Supervised(
        tmp_path / "stall.json", report_seconds=0.02, cancel_seconds=0.05, end_seconds=0.1
    )

    async def main():
        async with asyncio.timeout(20), task_group() as group:
            group.create_task(run.supervisor.watch())
            async with run.waits.until("rollouts", "batch 0"):
                await asyncio.Event().wait()

    with pytest.raises(StallError, match="it waited for rollouts, batch 0"):
        await main()


async def test_a_stop_of_the_whole_process_is_not_held_against_the_run(tmp_path, caplog):
    """Ctrl-Z, a laptop that sleeps, a clock that jumps: no time in which it could have gone on."""
    run = Supervised(tmp_path / "stall.json", report_seconds=1.0)
    async with run.waits.until("rollouts", "batch 0"), task_group() as group:
        watching = group.create_task(run.supervisor.watch())
        await asyncio.sleep(0.06)
        run.clock.ahead += 5000
        await asyncio.sleep(0.15)
        assert run.supervisor.quiet_seconds < 1.0
        watching.cancel()
    assert not caplog.records
