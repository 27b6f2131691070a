"""What becomes of a group when some of its episodes fail: retries, least size, failing fast."""

import asyncio

import pytest
from rollout_support import Calls, OneCall, executor, prompts, settle

from areal_agent.algorithms.advantages import group_advantages
from areal_agent.config.rollout_limits import GroupConfig
from areal_agent.errors import RewardError, ServerError
from areal_agent.rollout.episode import EpisodeSpec
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.live import current_episode
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trajectory import Trajectory, TrajectoryGroup, collate

SPEC = EpisodeSpec(id="0:0", prompt_id="0:0", seed=1, epoch=0, index=0)


async def group(work, n=3, engine=None, **policy):
    ended = []
    grouped = GroupedRolloutWorkflow(Calls(work), n, policy=GroupConfig(**policy))
    run = await grouped.run(engine or FakeEngine(), {}, SPEC, on_end=ended.append)
    return run, ended


def failing(error, times):
    """Fails so often in each episode, counted by its number."""
    seen = {}

    async def work(engine, data):
        name = current_episode().id.partition("~")[0]
        seen[name] = seen.get(name, 0) + 1
        row = await OneCall().arun_episode(engine, data)
        if seen[name] <= times:
            raise error
        return row

    return work


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RewardError("no"), "reward_error"), (ServerError("no"), "inference_error")],
)
async def test_what_is_not_the_policys_fault_is_run_again(error, outcome):
    engine = FakeEngine()
    run, ended = await group(failing(error, 2), n=1, engine=engine, retries=2)
    assert [(r.episode.id, r.episode.outcome, r.attempt) for r in ended] == [
        ("0:0:0", outcome, 0),
        ("0:0:0~1", outcome, 1),
        ("0:0:0~2", "ok", 2),
    ]
    assert len({request.gconfig.seed for request in engine.requests}) == 3
    assert [r.episode.id for r in run.runs] == ["0:0:0~2"]
    run, ended = await group(failing(error, 2), n=1, retries=1)
    assert [r.episode.outcome for r in run.runs] == [outcome]
    assert (run.group, run.why_dropped) == (None, "too_few")


async def test_bugs_and_rejections_are_not_run_again():
    _, ended = await group(failing(ValueError("bug"), 9), retries=5)
    assert [r.episode.outcome for r in ended] == ["workflow_error"] * 3

    async def nothing(engine, data):
        return None

    _, ended = await group(nothing, retries=5)
    assert [r.episode.outcome for r in ended] == ["rejected"] * 3


async def test_an_episode_that_is_stopped_from_outside_is_run_again():
    lives = []

    async def work(engine, data):
        lives.append(current_episode())
        if len(lives) == 1:
            await asyncio.Event().wait()
        return await OneCall().arun_episode(engine, data)

    async def stop():
        await settle()
        lives[0].stop("it made no progress for 60 s")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stop())
        run, ended = await group(work, n=1, retries=1)
    assert [r.episode.outcome for r in ended] == ["cancelled", "ok"]
    assert ended[0].episode.failure.message == "it made no progress for 60 s"
    assert run.group is not None


async def test_failing_fast_cancels_the_others_and_their_calls():
    engine = FakeEngine()

    async def work(own, data):
        if current_episode().id.endswith(":1"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise ValueError("bug")
        return await OneCall().arun_episode(own, data)

    engine.hold()
    run, ended = await group(work, engine=engine, fail_fast=True)
    assert [r.episode.outcome for r in run.runs] == ["cancelled", "workflow_error", "cancelled"]
    assert "episode 0:0:1 of its group failed" in run.runs[0].episode.failure.message
    assert (engine.running, engine.cancelled) == (0, 2)
    assert (run.group, run.why_dropped) == (None, "fail_fast")
    assert len(ended) == 3  # a cancelled sibling is not run again


async def test_siblings_that_a_failure_ends_are_no_failures_in_a_row():
    left = [ValueError("one bug")]

    async def work(engine, data):
        if left:
            raise left.pop()
        return await OneCall().arun_episode(engine, data)

    settings = {"group": GroupConfig(fail_fast=True), "max_consecutive_failures": 3}
    async with executor(Calls(work), group_size=8, **settings) as running:
        assert await running.next_batch() is not None
        assert running.stats().dropped_why == {"fail_fast": 1}


@pytest.mark.parametrize(("least", "kept"), [(1, 1), (2, 0), (3, 0)])
async def test_a_group_of_one_is_kept_or_dropped(least, kept):
    """S16: kept, its advantage is 0."""

    async def work(engine, data):
        if not current_episode().id.endswith(":1"):
            raise ValueError("bug")
        return await OneCall().arun_episode(engine, data)

    run, _ = await group(work, min_size=least)
    assert (run.group is not None) == bool(kept)
    if kept:
        batch = collate([run.group])
        found = group_advantages(
            batch.rewards,
            batch.group_ids,
            batch.episode_ids,
            normalize_by_std=True,
            std_eps=1e-6,
        )
        assert found.values.tolist() == [0.0]


def test_an_episode_of_several_rows_counts_once():
    """By hand: episodes earn 1 (three rows), 0 and 0; mean 1/3, unbiased deviation sqrt(1/3)."""
    row = Trajectory([1, 2], [False, True], [0.0, -0.5], [-1, 0], 0.0)
    won = Trajectory([1, 2], [False, True], [0.0, -0.5], [-1, 0], 1.0)
    three = TrajectoryGroup("p", [[won, won, won], [row], [row]])
    assert three.rewards == [1.0, 0.0, 0.0]
    batch = collate([three])
    plain, scaled = (
        group_advantages(
            batch.rewards,
            batch.group_ids,
            batch.episode_ids,
            normalize_by_std=by_std,
            std_eps=1e-12,
        ).values.tolist()
        for by_std in (False, True)
    )
    assert plain == pytest.approx([2 / 3] * 3 + [-1 / 3] * 2)
    assert scaled == pytest.approx([1.1547005] * 3 + [-0.5773503] * 2)


async def test_dropped_groups_are_accounted_for_by_reason():
    async def work(engine, data):
        if data["index"] == 0:
            raise ValueError("bug")
        reward = float(current_episode().id.endswith(":1")) if data["index"] != 1 else 1.0
        return await OneCall().arun_episode(engine, {"reward": reward})

    fates = []
    async with (
        asyncio.timeout(10),
        executor(
            Calls(work),
            prompts(10),
            dynamic_sampling=True,
            should_accept=lambda group: group.prompt_id != "0:2",
            on_fate=fates.append,
        ) as running,
    ):
        batch = await running.next_batch()
        assert [g.prompt_id for g in batch.groups] == ["0:3", "0:4", "0:5", "0:6"]
        metrics = running.take_metrics()
        stats = running.stats()
    assert stats.dropped_why == {"too_few": 1, "zero_variance": 1, "refused": 1}
    assert metrics["rollout/dropped/zero_variance"] == 1
    why = {told.prompt_id: (told.fate, told.why) for told in fates}
    assert why["0:1"] == ("dropped", "zero_variance")
    assert why["0:2"] == ("dropped", "refused")
    assert why["0:3"] == ("trained", "")
