"""What every trainer of weights promises, checked through the handle that the driver holds.

A backend joins by adding its factory to `FACTORIES`.
"""

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_agent.backends.base import BackendHandle, LossSpec, StepResult
from areal_agent.backends.local import LocalBackend
from areal_agent.backends.losses import loss_from_spec
from areal_agent.backends.process import ProcessBackend
from areal_agent.config.algorithm import GrpoConfig
from areal_agent.config.training import OptimizerConfig, TrainEngineConfig
from areal_agent.errors import NonFiniteError, TrainError
from areal_agent.trajectory import NO_VERSION, RolloutBatch, TrainBatch

CONFIG = TrainEngineConfig(
    optimizer=OptimizerConfig(lr=1e-2, warmup_steps=2, lr_scheduler_type="linear"),
    max_tokens_per_mb=64,
)
LOSS = LossSpec("grpo", GrpoConfig().model_dump())

Factory = Callable[[Path, TrainEngineConfig, Path], AbstractAsyncContextManager[BackendHandle]]
"""From a model folder, settings and a scratch folder to a handle that is to be entered."""


class _InProcess:
    """A `BackendHandle` around a `LocalBackend` in this process."""

    def __init__(self, folder: Path, config: TrainEngineConfig) -> None:
        self._backend: LocalBackend | None = None
        self._folder, self._config = folder, config

    async def __aenter__(self) -> Self:
        self._backend = LocalBackend(self._config, self._folder, total_optimizer_steps=20, seed=1)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._backend = None

    async def logprobs(self, batch: RolloutBatch) -> Tensor:
        return self._backend.logprobs(batch)

    async def step(self, batch: TrainBatch, loss: LossSpec) -> StepResult:
        return self._backend.step(batch, loss_from_spec(loss))

    async def export(self, folder: Path) -> None:
        self._backend.export(folder)

    async def save(self, folder: Path) -> None:
        self._backend.save(folder)

    async def load(self, folder: Path) -> None:
        self._backend.load(folder)


def local(
    folder: Path, config: TrainEngineConfig, scratch: Path
) -> AbstractAsyncContextManager[BackendHandle]:
    return _InProcess(folder, config)


def process(
    folder: Path, config: TrainEngineConfig, scratch: Path
) -> AbstractAsyncContextManager[BackendHandle]:
    return ProcessBackend(
        config, folder, total_optimizer_steps=20, seed=1, log=scratch / "trainer.log"
    )


FACTORIES: dict[str, Factory] = {"local": local, "process": process}


@pytest.fixture(params=sorted(FACTORIES))
def backend(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path
) -> Callable[..., AbstractAsyncContextManager[BackendHandle]]:
    """Make a backend: ``backend()``, or with another model folder or other settings."""
    factory = FACTORIES[request.param]

    def make(
        folder: Path = tiny_model, config: TrainEngineConfig = CONFIG
    ) -> AbstractAsyncContextManager[BackendHandle]:
        return factory(folder, config, tmp_path)

    return make


Make = Callable[..., AbstractAsyncContextManager[BackendHandle]]


def make_batch(n: int = 8, width: int = 20, *, seed: int = 0) -> TrainBatch:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, width + 1, (n,), generator=g)
    attention = torch.arange(width)[None, :] < lengths[:, None]
    mask = attention & (torch.arange(width)[None, :] >= 4)
    logprobs = torch.where(mask, -4 + 0.2 * torch.randn(n, width, generator=g), 0.0)
    return TrainBatch(
        input_ids=torch.where(attention, torch.randint(2, 64, (n, width), generator=g), 0),
        attention_mask=attention,
        loss_mask=mask,
        logprobs=logprobs,
        versions=torch.where(mask, 0, NO_VERSION).int(),
        rewards=torch.rand(n, generator=g),
        group_ids=torch.arange(n) // 4,
        episode_ids=torch.arange(n),
        truncated=torch.zeros(n, dtype=torch.bool),
        temperatures=torch.ones(n, width),
        advantages=torch.randn(n, 1, generator=g).expand(n, width).clone(),
        prox_logprobs=logprobs,
    )


def as_rollout(batch: TrainBatch) -> RolloutBatch:
    return RolloutBatch(**{f.name: getattr(batch, f.name) for f in fields(RolloutBatch)})


def poisoned(batch: TrainBatch) -> TrainBatch:
    """NaN in the advantage of one sampled token."""
    advantages = batch.advantages.clone()
    advantages[2, 5] = math.nan
    assert batch.loss_mask[2, 5]
    return replace(batch, advantages=advantages)


async def on_policy(handle: BackendHandle, batch: TrainBatch) -> TrainBatch:
    """The batch as the handle's present weights would have sampled it."""
    logprobs = await handle.logprobs(as_rollout(batch))
    return replace(batch, logprobs=logprobs, prox_logprobs=logprobs)


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors in a folder's safetensors, named by file and key."""
    return {
        f"{path.name}:{name}": value
        for path in sorted(folder.rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def equal(a: Path, b: Path) -> bool:
    left, right = tensors(a), tensors(b)
    assert left
    return left.keys() == right.keys() and all(torch.equal(v, right[n]) for n, v in left.items())


async def test_logprobs_are_those_of_the_exported_model(backend: Make, tmp_path: Path) -> None:
    batch = as_rollout(make_batch())
    batch = replace(batch, temperatures=torch.full_like(batch.logprobs, 0.6))
    async with backend() as handle:
        got = await handle.logprobs(batch)
        await handle.export(tmp_path / "out")
    assert got.dtype == torch.float32
    assert got.device.type == "cpu"
    assert (got[~batch.loss_mask] == 0).all()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    logps = (logits.double() / 0.6).log_softmax(-1)[:, :-1]
    expected = logps.gather(-1, batch.input_ids[:, 1:, None])[..., 0]
    mask = batch.loss_mask[:, 1:]
    assert float((got[:, 1:] - expected)[mask].abs().max()) < 1e-5


async def test_a_step_lowers_the_loss(backend: Make) -> None:
    async with backend() as handle:
        batch = await on_policy(handle, make_batch())
        first = await handle.step(batch, LOSS)
        await handle.step(batch, LOSS)
        third = await handle.step(batch, LOSS)
    assert first.applied
    assert third.metrics["loss"] < first.metrics["loss"] - 0.01
    assert first.metrics["loss_count"] == batch.n_loss_tokens
    assert first.metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert first.metrics["clip_share"] == 0
    assert first.metrics["grad_norm"] > 0
    assert first.metrics["lr"] == pytest.approx(5e-3)
    assert third.metrics["lr"] == pytest.approx(1e-2)


async def test_a_batch_without_loss_tokens_changes_nothing(backend: Make, tmp_path: Path) -> None:
    batch = make_batch()
    nothing = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    none = TrainBatch(
        **{
            f.name: v[:0] if isinstance(v := getattr(batch, f.name), Tensor) else v
            for f in fields(TrainBatch)
        }
    )
    async with backend() as handle:
        await handle.step(batch, LOSS)
        await handle.save(tmp_path / "a")
        for empty in (nothing, none):
            result = await handle.step(empty, LOSS)
            assert not result.applied
            assert result.metrics["loss_count"] == 0
        await handle.save(tmp_path / "b")
    assert equal(tmp_path / "a", tmp_path / "b")


async def test_a_nan_is_skipped_and_changes_no_bit(backend: Make, tmp_path: Path) -> None:
    """S19: weights and optimiser state stay as they are."""
    async with backend() as handle:
        await handle.step(make_batch(), LOSS)
        await handle.save(tmp_path / "before")
        result = await handle.step(poisoned(make_batch()), LOSS)
        await handle.save(tmp_path / "after")
        await handle.export(tmp_path / "exported")
        good = await handle.step(make_batch(), LOSS)
        await handle.save(tmp_path / "later")
    assert not result.applied
    assert not math.isfinite(result.metrics["loss"])
    assert equal(tmp_path / "before", tmp_path / "after")
    assert all(torch.isfinite(v).all() for v in tensors(tmp_path / "exported").values())
    assert good.applied
    assert not equal(tmp_path / "after", tmp_path / "later")


async def test_nans_in_a_row_end_the_run(backend: Make) -> None:
    """S19: the run stops with the reason."""
    bad = poisoned(make_batch())
    async with backend() as handle:
        for _ in range(4):
            assert not (await handle.step(bad, LOSS)).applied
        # A good step starts the count anew.
        assert (await handle.step(make_batch(), LOSS)).applied
        for _ in range(4):
            assert not (await handle.step(bad, LOSS)).applied
        with pytest.raises(NonFiniteError, match="5 optimiser steps in a row"):
            await handle.step(bad, LOSS)


async def test_training_goes_on_bit_for_bit_after_load(backend: Make, tmp_path: Path) -> None:
    batches = [make_batch(seed=seed) for seed in range(4)]
    async with backend() as handle:
        for batch in batches[:2]:
            await handle.step(batch, LOSS)
        await handle.save(tmp_path / "middle")
        straight = [await handle.step(batch, LOSS) for batch in batches[2:]]
        await handle.save(tmp_path / "straight")
    async with backend() as handle:
        await handle.step(batches[3], LOSS)
        await handle.load(tmp_path / "middle")
        resumed = [await handle.step(batch, LOSS) for batch in batches[2:]]
        await handle.save(tmp_path / "resumed")
    assert [r.metrics for r in resumed] == [r.metrics for r in straight]
    assert straight[0].metrics["lr"] != straight[1].metrics["lr"]
    assert equal(tmp_path / "straight", tmp_path / "resumed")
    assert not equal(tmp_path / "straight", tmp_path / "middle")


async def test_load_names_what_does_not_fit_and_changes_nothing(
    backend: Make, tmp_path: Path
) -> None:
    async with backend() as handle:
        await handle.step(make_batch(), LOSS)
        await handle.save(tmp_path / "good")
        await handle.save(tmp_path / "bad")
        path = tmp_path / "bad" / "weights.safetensors"
        weights = load_file(path)
        norm, down = "model.norm.weight", "model.layers.1.mlp.down_proj.weight"
        weights["stranger"] = weights.pop(norm)
        weights[down] = weights[down][:3]
        save_file(weights, path)
        await handle.step(make_batch(seed=1), LOSS)
        await handle.save(tmp_path / "now")
        with pytest.raises(TrainError) as caught:
            await handle.load(tmp_path / "bad")
        await handle.save(tmp_path / "still")
        (tmp_path / "good" / "optimizer.safetensors").unlink()
        with pytest.raises(TrainError, match=r"optimizer\.safetensors"):
            await handle.load(tmp_path / "good")
        await handle.save(tmp_path / "still2")
    message = str(caught.value)
    assert f"missing in weights: {norm}" in message
    assert "unexpected in weights: stranger" in message
    assert "expected float32 [32, 64], got float32 [3, 64]" in message
    assert equal(tmp_path / "now", tmp_path / "still")
    assert equal(tmp_path / "now", tmp_path / "still2")
