"""AsyncRewardWrapper with real workers: values, time limits, crashes; and what is never shipped."""

import asyncio
import functools
import math
import os
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import reward_functions as fn
import torch
from rollout_support import OneCall, executor, prompts

from areal_agent.aio import collect, task_group
from areal_agent.config.reward import RewardConfig
from areal_agent.errors import (
    ConfigError,
    DataError,
    RewardCrashError,
    RewardError,
    RewardTimeoutError,
)
from areal_agent.launch.reward_pool import RewardPool
from areal_agent.registry import resolve
from areal_agent.rewarding import inline_reward
from areal_agent.rollout.reward import AsyncRewardWrapper as Reward
from areal_agent.rollout.reward_workers import use_rewards


@asynccontextmanager
async def workers(n=2, **settings):
    pool = RewardPool(RewardConfig(workers=n, **settings))
    async with pool:
        with use_rewards(pool):
            yield pool


async def outcome(reward, *args):
    """What a call gave, or which error."""
    try:
        return await reward(*args)
    except RewardError as error:
        return error


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my rewards.py"
    path.write_text("SCALE = 2\ndef scaled(value):\n    return SCALE * value\n")
    return resolve(f"{path}:scaled", kind="rewards")


VALUES = [
    (1, 1.0),
    (True, 1.0),
    (np.float32(0.5), 0.5),
    (np.array([0.25]), 0.25),
    (torch.tensor(0.5), 0.5),
    (torch.tensor([0.75]), 0.75),
    (None, "got None"),
    (math.nan, "got nan"),
    (math.inf, "got inf"),
    ("1", "got '1'"),
    ([1.0], r"got \[1.0\]"),
]


@pytest.mark.parametrize("wrapped", [inline_reward(lambda value: value), fn.judged])
async def test_numbers_of_every_kind_are_floats_and_the_rest_is_named(wrapped):
    """S12: both where a function runs here and where it is awaited."""
    reward = Reward(wrapped)
    for value, expected in VALUES:
        if isinstance(expected, float):
            got = await reward(value)
            assert (got, type(got)) == (expected, float)
        else:
            with pytest.raises(RewardError, match=expected):
                await reward(value)
    assert await reward.optional(None) is None
    assert (reward.counts["calls"], reward.counts["errors"]) == (len(VALUES) + 1, 5)


async def test_values_and_arguments_pass_through_workers():
    """S12 with a worker in between; S13: what can be shipped, is, by name or as it stands."""
    async with workers(1, memory_mb=256) as pool:
        same = Reward(fn.same)
        for value, expected in VALUES:
            if isinstance(value, torch.Tensor):
                continue  # a worker would import torch
            if isinstance(expected, float):
                assert await same(value) == expected
            else:
                with pytest.raises(RewardError, match=expected):
                    await same(value)
        assert await same.optional(None) is None
        assert await Reward(fn.kind_of)(np.float64(1.0)) == 1.0
        assert await Reward(fn.numpy_value)("0.5") == 0.5
        assert await Reward(functools.partial(fn.same, value=0.5))() == 0.5
        assert await Reward(fn.Threshold(2))(3) == 1.0
        assert await Reward(fn.Threshold(2).method)(3) == 1.5
        assert await Reward(fn.doubled)(1.0) == 2.0
        assert await Reward(fn.returns_coroutine)(0.5) == 0.5
        assert await Reward(functools.partial(max, key=fn.same))([1, 3]) == 3.0
        with pytest.raises(RewardError, match="argument of the reward function same"):
            await same(threading.Lock())
        with pytest.raises(RewardError, match="raises failed: ValueError: no"):
            await Reward(fn.raises)()
        with pytest.raises(RewardError, match="failed: SystemExit: 4"):
            await Reward(fn.crashes)("sys.exit")
        with pytest.raises(RewardError, match="failed: RecursionError"):
            await Reward(fn.crashes)("recursion")
        with pytest.raises(RewardError, match=r"failed: MemoryError.*rollout\.reward\.memory_mb"):
            await Reward(fn.hungry)(1024)
        assert await Reward(fn.hungry)(64) == 1.0
        assert await Reward(fn.forks)() == 1.0
        assert pool.counts["workers_started"] == 2  # a MemoryError is the worker's last
        assert (pool.counts["errors"], pool.counts["reruns"], pool.counts["retries"]) == (10, 0, 0)


async def test_a_function_of_a_script_loaded_by_path_is_loaded_by_path_in_the_worker(script):
    """S13: also while another thread holds a lock, as after a fork nobody would release it."""
    lock = threading.Lock()
    with lock:
        async with workers(1):
            assert await Reward(script)(3) == 6.0


@pytest.mark.parametrize(
    "function",
    [lambda value: value, fn.lambda_at_the_top, functools.partial(lambda value: value, 1)],
)
def test_what_a_worker_cannot_import_is_refused_when_the_wrapper_is_made(function):
    """S13: a lambda or a closure, also within a partial."""
    with pytest.raises(ConfigError, match=r"(?s)lambda.*top level.*async def.*inline_reward"):
        Reward(function)


def test_a_closure_and_a_method_of_a_local_class_are_refused_too():
    class Local:
        def method(self, value):
            return value

    def closure(value):
        return value

    for function in (closure, Local().method):
        with pytest.raises(ConfigError, match="cannot run in a worker process"):
            Reward(function)
    with pytest.raises(ConfigError, match="expected a reward function, got 3"):
        Reward(3)
    with pytest.raises(ConfigError, match="timeout_seconds above 0, got 3, None and 0"):
        Reward(fn.half, 0)


@pytest.mark.parametrize(
    "function",
    [fn.judged, fn.Judge(), functools.partial(fn.Judge()), functools.partial(fn.judged)],
)
async def test_async_callables_of_every_kind_are_awaited(function):
    """S14: functions, objects, partials of both."""
    assert await Reward(function)(0.5) == 0.5
    assert await Reward(fn.Judge().method)(0.5) == 1.0


async def test_async_and_inline_functions_have_a_limit_and_a_policy():
    async def never():
        await asyncio.Event().wait()

    async def times_out():
        raise TimeoutError("its own")

    with pytest.raises(RewardTimeoutError, match="longer than"):
        await Reward(never, 0.01)()
    with pytest.raises(RewardError, match="failed: TimeoutError: its own"):
        await Reward(times_out)()
    slow = Reward(never, 0.01, on_timeout=-0.5, on_error=-1.0)
    assert await slow() == -0.5
    broken = Reward(times_out, on_timeout=-0.5, on_error=-1.0)
    assert [await broken(), await broken()] == [-1.0, -1.0]
    assert (slow.counts["timeouts"], slow.counts["scored"]) == (1, 1)
    assert (broken.counts["errors"], broken.counts["scored"]) == (2, 2)


class NoText(Exception):
    def __str__(self):
        raise ValueError


class NoNumber:
    def __float__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SystemExit(0), "failed: SystemExit: 0"),
        (NoText(), "failed: NoText: <its text could not be had"),
        (asyncio.CancelledError(), "failed: CancelledError"),
        (NoNumber(), "expected a finite number as reward, got <"),
    ],
)
@pytest.mark.parametrize("mark", [lambda function: function, inline_reward])
async def test_what_functions_on_the_loop_may_do_is_an_error_with_a_policy(given, message, mark):
    """S12: also what is no Exception, has no text, or is no number when it is looked at."""

    @mark
    async def function():
        if isinstance(given, BaseException):
            raise given
        return given

    reward = Reward(function)
    with pytest.raises(RewardError, match=message):
        await reward()
    assert reward.counts["errors"] == 1
    assert await Reward(function, on_error=-1)() == -1.0


async def test_what_is_returned_after_the_limit_is_no_reward():
    async def zero_at_the_end():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 0.0

    reward = Reward(zero_at_the_end, 0.01)
    with pytest.raises(RewardTimeoutError, match="longer than"):
        await reward()
    assert reward.counts["timeouts"] == 1


@pytest.mark.parametrize("policy", ["rejct", "0", True, math.nan])
def test_a_policy_is_reject_or_a_score(policy):
    for name in ("on_timeout", "on_error"):
        with pytest.raises(ConfigError, match=f"'reject' or a finite score as {name}, got"):
            Reward(fn.judged, **{name: policy})


async def test_no_policy_scores_broken_data():
    @inline_reward
    def reads(row):
        raise DataError("no answer")

    with pytest.raises(DataError, match="no answer"):
        await Reward(reads, on_error=0.0)({})


async def test_a_timeout_or_a_crash_costs_the_culprit_alone(tmp_path):
    """S14: others go on meanwhile; a hung function is killed and its place is free again."""
    started = tmp_path / "pid"
    async with workers(3, timeout_seconds=0.4, on_timeout=0.5) as pool:
        calls = [
            outcome(Reward(fn.hangs), str(started)),
            outcome(Reward(fn.crashes), "segfault"),
            outcome(Reward(fn.crashes), "exit"),
            outcome(Reward(fn.crashes), "kill"),
            *(outcome(Reward(fn.sleeps), 0.05, i) for i in range(8)),
        ]
        hung, *crashed, a, b, c, d, e, f, g, h = await collect(calls)
        assert hung == 0.5
        assert [type(error) for error in crashed] == [RewardCrashError] * 3
        assert "SIGSEGV" in str(crashed[0])
        assert "Fatal Python error" in str(crashed[0])
        assert "exit code 3" in str(crashed[1])
        assert "SIGKILL" in str(crashed[2])
        assert (a, b, c, d, e, f, g, h) == tuple(range(8))
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text()), 0)
        assert len(list(pool.log_dir.iterdir())) <= 3
        counts = pool.counts
        assert (counts["timeouts"], counts["crashes"], counts["errors"]) == (1, 3, 0)
        assert counts["reruns"] <= 3
        assert await Reward(fn.sleeps)(0.0) == 1.0


async def test_an_innocent_whose_worker_was_sabotaged_is_run_again_once():
    async with workers(1) as pool:
        assert await Reward(fn.dies_later)(0.1) == 1.0
        assert await Reward(fn.sleeps)(0.3) == 1.0
        assert (pool.counts["reruns"], pool.counts["crashes"]) == (1, 0)
        assert await Reward(fn.dies_later)(0.05) == 1.0
        await asyncio.sleep(0.3)
        assert await Reward(fn.half)() == 0.5  # an idle worker that died is just replaced
        assert pool.counts["crashes"] == 0


async def test_waiting_for_a_worker_is_not_the_functions_time():
    async with workers(1, timeout_seconds=0.3) as pool:
        slow = Reward(fn.sleeps)
        assert await collect(slow(0.12) for _ in range(4)) == [1.0] * 4
        assert pool.counts["timeouts"] == 0
        assert pool.counts["wait_seconds"] > 0.5 > pool.counts["seconds"] - 0.1


class Slow(OneCall):
    """Episodes whose reward sleeps."""

    reward = Reward(fn.sleeps)

    async def arun_episode(self, engine, data):
        row = await super().arun_episode(engine, data)
        return replace(row, reward=await self.reward(1.0))


async def test_sixteen_episodes_with_sleeping_rewards_take_as_long_as_one():
    """S14: and the loop is free meanwhile."""
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with (
        workers(16),
        task_group() as group,
        executor(Slow(), prompts(8), consumer_batch_size=8) as running,
    ):
        ticking = group.create_task(tick())
        batch = await running.next_batch()
        ticking.cancel()
    assert len(batch.episodes) == 16
    assert max(episode.seconds for episode in batch.episodes) < 10  # 16 in turn would take more
    assert ticks > 10


async def test_a_function_that_always_fails_is_an_error_each_time():
    """S11: the share of errors is what it is, and nothing became a score."""
    async with workers(1) as pool:
        for _ in range(3):
            with pytest.raises(RewardError, match="ValueError: no"):
                await Reward(fn.raises)()
        metrics = pool.take_metrics()
        assert metrics["reward/errors"] == metrics["reward/calls"] == 3
        assert metrics["reward/scored"] == metrics["reward/reruns"] == 0
        with pytest.raises(RewardCrashError):
            await Reward(fn.babbles)()
        again = pool.take_metrics()
        assert (again["reward/calls"], again["reward/errors"], again["reward/crashes"]) == (1, 0, 1)


async def test_cpu_time_is_limited():
    async with workers(1, cpu_seconds=0.2, on_timeout=0.25) as pool:
        assert await Reward(fn.burns)() == 0.25
        assert pool.counts["timeouts"] == 1


async def test_an_abandoned_call_takes_its_worker_along():
    async with workers(1) as pool:
        slow = Reward(fn.sleeps)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await slow(60)
        assert await Reward(fn.half)() == 0.5
        assert pool.counts["workers_started"] == 2
