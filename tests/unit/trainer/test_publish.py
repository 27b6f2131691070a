"""Publishing: export, load everywhere, compare; a server that serves something else is found."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from trainer_support import ScriptedBackend, batch_of

from areal_agent.errors import NonFiniteError, StallError, WeightUpdateError
from areal_agent.rollout.deadlines import Waits
from areal_agent.testing.fakes import FakeEngine
from areal_agent.trainer.publish import WeightPublisher
from areal_agent.trajectory import RolloutBatch
from areal_agent.types import Scores


def publisher(
    tmp_path: Path, engine: FakeEngine, backend: ScriptedBackend, *, limit: float = 1e-2
) -> WeightPublisher:
    return WeightPublisher(backend, engine, tmp_path, max_probe_difference=limit)


async def test_weights_are_exported_then_served(tmp_path: Path) -> None:
    backend = ScriptedBackend()
    async with FakeEngine() as engine:
        metrics = await publisher(tmp_path, engine, backend).publish(1, batch_of([0, 1]))
        assert engine.version == 1
        assert engine.loaded == [(tmp_path / "v000001", 1)]
    assert metrics["publish/version"] == 1
    assert metrics["publish/probe_abs_max"] == 0


async def test_the_trainer_scores_while_servers_load(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    class Meeting(ScriptedBackend):
        async def logprobs(self, batch: RolloutBatch) -> Tensor:
            await both.wait()
            return await super().logprobs(batch)

    class Loading(FakeEngine):
        async def update_weights(self, path: Path, version: int) -> None:
            await both.wait()
            await super().update_weights(path, version)

    async with asyncio.timeout(10), Loading() as engine:
        await publisher(tmp_path, engine, Meeting()).publish(1, batch_of([0, 1]))
        assert engine.version == 1


async def test_two_versions_stay_on_disk(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    async with FakeEngine() as engine:
        publish = publisher(tmp_path, engine, ScriptedBackend()).publish
        for version in range(1, 5):
            await publish(version, batch_of([0, 1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v000003", "v000004", "vault"]


async def test_a_server_that_serves_other_weights_ends_the_run(tmp_path: Path) -> None:
    backend = ScriptedBackend(logprob=-0.7)
    async with FakeEngine() as engine:
        with pytest.raises(WeightUpdateError, match=r"differ from the trainer's by 0\.2"):
            await publisher(tmp_path, engine, backend).publish(1, batch_of([0, 1]))


async def test_the_probe_compares_at_one_temperature_whatever_the_rows_were_sampled_at(
    tmp_path: Path,
) -> None:
    told: list[float] = []

    class Trainer(ScriptedBackend):
        async def logprobs(self, batch: RolloutBatch) -> Tensor:
            told.extend(batch.temperatures.unique().tolist())
            return await super().logprobs(batch)

    class Server(FakeEngine):
        async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
            told.append(temperature)
            return await super().score(rows, temperature=temperature)

    batch = batch_of([0, 1])
    batch = replace(batch, temperatures=torch.rand_like(batch.temperatures) + 0.1)
    async with Server() as engine:
        await publisher(tmp_path, engine, Trainer()).publish(1, batch)
    assert told == [1.0, 1.0]


async def test_a_probe_that_is_not_a_number_ends_the_run(tmp_path: Path) -> None:
    backend = ScriptedBackend(logprob=float("nan"))
    async with FakeEngine() as engine:
        with pytest.raises(WeightUpdateError, match="nan"):
            await publisher(tmp_path, engine, backend).publish(1, batch_of([0, 1]))


async def test_non_finite_weights_are_never_published(tmp_path: Path) -> None:
    """S19."""
    async with FakeEngine() as engine:
        with pytest.raises(NonFiniteError):
            await publisher(tmp_path, engine, ScriptedBackend(finite=False)).publish(
                1, batch_of([0, 1])
            )
        assert engine.version == 0
        assert engine.loaded == []


async def test_a_refused_update_keeps_the_old_version(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.refuse_weights(tmp_path / "v000001")
        with pytest.raises(WeightUpdateError):
            await publisher(tmp_path, engine, ScriptedBackend()).publish(1, batch_of([0, 1]))
        assert engine.version == 0


async def test_servers_that_never_load_end_the_run_by_name(tmp_path: Path) -> None:
    class Hangs(FakeEngine):
        async def update_weights(self, path: Path, version: int) -> None:
            await asyncio.Event().wait()

    waits = Waits()
    waits.report = lambda why: f"report on {waits.open[-1].name}"
    async with Hangs() as engine:
        publish = WeightPublisher(
            ScriptedBackend(),
            engine,
            tmp_path,
            max_probe_difference=1.0,
            waits=waits,
            load_seconds=0.02,
        ).publish
        with pytest.raises(StallError) as caught:
            await publish(1, batch_of([0, 1]))
    assert str(caught.value) == (
        "the run waited for the inference servers, loading version 1, for longer than 0.08 s "
        "(rollout.server.update_timeout_seconds); the report is in report on loading version 1"
    )


async def test_a_probe_of_another_version_ends_the_run(tmp_path: Path) -> None:
    class Behind(FakeEngine):
        async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
            found = await super().score(rows, temperature=temperature)
            return replace(found, version=found.version - 1)

    async with Behind() as engine:
        with pytest.raises(WeightUpdateError, match="scores with version 0"):
            await publisher(tmp_path, engine, ScriptedBackend()).publish(1, batch_of([0, 1]))
