"""The trainer's process: calls, typed failures, and deaths that are named and never hang."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from test_frames import make_batch, same_bits
from waiting import gone, until

from areal_agent.backends.base import LossSpec
from areal_agent.backends.process import ProcessBackend
from areal_agent.config.training import TrainEngineConfig
from areal_agent.errors import ConfigError, NonFiniteError, StallError, TrainError

WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))
DRIVER = Path(__file__).with_name("backend_driver.py")


@asynccontextmanager
async def running(
    folder: Path, *, model: str = "model", timeout: float = 60.0, call: float = 60.0
) -> AsyncGenerator[ProcessBackend]:
    async with ProcessBackend(
        TrainEngineConfig(call_timeout_seconds=call),
        Path(model),
        total_optimizer_steps=10,
        seed=3,
        log=folder / "trainer.log",
        startup_timeout_seconds=timeout,
        command=WORKER,
    ) as backend:
        yield backend


async def test_calls_cross_bit_for_bit_and_busy_time_is_recorded(tmp_path: Path) -> None:
    batch = make_batch()
    async with running(tmp_path) as backend:
        got = await backend.logprobs(batch)
        assert same_bits(got, torch.where(batch.loss_mask, batch.logprobs * 0.6, torch.nan))
        result = await backend.step(batch, LossSpec("sft", {}))
        assert result.applied is True
        assert result.metrics["loss"] == 0.1 + 2
        assert result.metrics["nan"] != result.metrics["nan"]
        await backend.save(tmp_path / "state")
        assert (tmp_path / "state").is_dir()
        await backend.load(tmp_path / "state")
        assert not (tmp_path / "state").exists()
        pid = backend.pid
    assert gone(pid)
    assert len(backend.busy_spans) == 2
    (a, b), (c, d) = backend.busy_spans
    assert a <= b <= c <= d


async def test_errors_come_back_typed_and_prints_go_to_the_log(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        for kind in (NonFiniteError, TrainError, ConfigError):
            with pytest.raises(kind, match=f"^{kind.__name__} was asked for$") as error:
                await backend.export(tmp_path / kind.__name__)
            assert type(error.value) is kind
        with pytest.raises(TrainError, match=r"(?s)KeyError: 'lm_head.weight'.*fake_worker.py"):
            await backend.export(tmp_path / "KeyError")
        await backend.export(tmp_path / "print")
        assert len(await backend.logprobs(make_batch())) == 2  # and the worker goes on
    assert "a library talks" in (tmp_path / "trainer.log").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [("die", "was ended by SIGKILL"), ("leave", r"ended with exit code 3[\s\S]*the last words")],
)
async def test_the_workers_death_fails_the_call_with_its_cause(
    name: str, message: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as backend:
        with pytest.raises(TrainError, match=f"the trainer's worker.*{message}"):
            await backend.export(tmp_path / name)
        with pytest.raises(TrainError, match=message):  # and so do later calls
            await backend.logprobs(make_batch())
        with pytest.raises(TrainError, match=message):
            await backend.wait_died()


async def test_a_cancelled_call_is_let_finish_and_leaving_ends_even_a_hanging_one(
    tmp_path: Path,
) -> None:
    batch = make_batch()
    async with running(tmp_path) as backend:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(backend.export(tmp_path / "slow"))
            await until((tmp_path / "slow-started").exists)
            task.cancel()
        assert task.cancelled()
        assert not (tmp_path / "slow-done").exists()
        got = await backend.logprobs(batch)
        assert (tmp_path / "slow-done").exists()  # one at a time
        assert same_bits(got, torch.where(batch.loss_mask, batch.logprobs * 0.6, torch.nan))

        assert os.getpgid(backend.pid) != os.getpgid(0)  # Ctrl-C is not the worker's to handle
        os.kill(backend.pid, signal.SIGINT)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(backend.export(tmp_path / "hang"))
            await until((tmp_path / "hanging").exists)
            task.cancel()
        pid = backend.pid
    assert gone(pid, 0.0)
    await backend.wait_died()  # stopped by us: no error


async def test_a_call_that_hangs_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, call=1.0) as backend, asyncio.TaskGroup() as group:
        assert backend.describe()[0].startswith(f"process {backend.pid} runs: has nothing to do")
        hung = group.create_task(fails(backend.export(tmp_path / "hang")))
        await until((tmp_path / "hanging").exists)
        assert "`export` asked " in backend.describe()[0]
        said = await hung
    assert f"the trainer's worker (process {backend.pid}) has not answered `export`" in said
    assert "within 1 s (actor.call_timeout_seconds)" in said


async def fails(call: Coroutine[None, None, None]) -> str:
    with pytest.raises(StallError) as caught:
        await call
    return str(caught.value)


async def test_a_refused_model_ends_the_start_with_the_workers_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model folder 'missing' does not exist"):
        async with running(tmp_path, model="missing"):
            pass


async def test_a_start_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="did not load slow within 3 s"):
        async with running(tmp_path, model="slow", timeout=3.0):
            pass


def test_sigkill_of_the_driver_ends_the_worker_mid_call(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(DRIVER), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as driver:
        pid = int(driver.stdout.readline())
        assert not gone(pid, 0.2)
        driver.kill()
        assert gone(pid)
