"""The gradient of a step does not depend on how the batch is cut, padded or ordered."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_support import make_batch
from torch import Tensor
from torch.nn import functional

from areal_agent.algorithms.grpo import Grpo
from areal_agent.backends.base import StepResult
from areal_agent.backends.local import LocalBackend
from areal_agent.config.algorithm import GrpoConfig
from areal_agent.config.training import OptimizerConfig, TrainEngineConfig
from areal_agent.trajectory import TrainBatch

LR = 1e-2


def stepped(
    folder: Path, batch: TrainBatch, max_tokens_per_mb: int = 8192
) -> tuple[StepResult, dict[str, Tensor]]:
    """One step from fresh weights, and where it led."""
    config = TrainEngineConfig(
        max_tokens_per_mb=max_tokens_per_mb,
        # An eps far above the gradients makes AdamW's first step proportional to them.
        optimizer=OptimizerConfig(lr=LR, eps=100.0, gradient_clipping=1e6),
    )
    backend = LocalBackend(config, folder, total_optimizer_steps=10, seed=0)
    before = {n: p.detach().clone() for n, p in backend._model.named_parameters()}
    result = backend.step(batch, Grpo(GrpoConfig()).loss)
    after = backend._model.named_parameters()
    return result, {n: (p.detach() - before[n]) * 100.0 / LR for n, p in after}


@pytest.fixture
def batch(tiny_model: Path) -> TrainBatch:
    """Turns of many temperatures; prox logprobs so near the model's that not all tokens clip."""
    raw = make_batch(seed=3, temperature=None)
    backend = LocalBackend(TrainEngineConfig(), tiny_model, total_optimizer_steps=1, seed=0)
    exact = backend.logprobs(raw)
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(exact.shape, generator=g)
    prox = torch.where(raw.loss_mask, exact + 0.2 * noise, 0.0)
    return replace(raw, prox_logprobs=prox, logprobs=prox + 0.3 * noise.flip(0))


def same(a: tuple[StepResult, dict[str, Tensor]], b: tuple[StepResult, dict[str, Tensor]]) -> None:
    assert a[0].applied
    assert b[0].applied
    assert b[0].metrics == pytest.approx(dict(a[0].metrics), rel=1e-4, abs=1e-6)
    largest = max(float(change.abs().max()) for change in a[1].values())
    assert largest > 1e-3
    for name, change in a[1].items():
        assert float((b[1][name] - change).abs().max()) < 1e-3 * largest, name


@pytest.mark.parametrize("max_tokens", [1, 40, 100])
def test_micro_batches(tiny_model: Path, batch: TrainBatch, max_tokens: int) -> None:
    whole = stepped(tiny_model, batch)
    assert 0.05 < whole[0].metrics["clip_share"] < 0.95
    same(whole, stepped(tiny_model, batch, max_tokens))


def test_temperatures_count(tiny_model: Path, batch: TrainBatch) -> None:
    """A batch at one temperature leads elsewhere."""
    plain = replace(batch, temperatures=torch.ones_like(batch.temperatures))
    mixed, same_for_all = stepped(tiny_model, batch)[1], stepped(tiny_model, plain)[1]
    assert any(float((mixed[n] - same_for_all[n]).abs().max()) > 1e-3 for n in mixed)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300), st.integers(0, 2**31))
def test_logprobs_at_mixed_temperatures_do_not_depend_on_the_cut(
    tiny_model: Path, seed: int, max_tokens: int, order_seed: int
) -> None:
    batch = make_batch(seed=seed, temperature=None)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(order_seed))
    config = TrainEngineConfig(max_tokens_per_mb=max_tokens)
    cut = LocalBackend(config, tiny_model, total_optimizer_steps=1, seed=0)
    whole = LocalBackend(TrainEngineConfig(), tiny_model, total_optimizer_steps=1, seed=0)
    expected, got = whole.logprobs(batch)[order], cut.logprobs(batch.rows(order))
    torch.testing.assert_close(got, expected[:, : got.shape[1]], rtol=1e-4, atol=1e-5)


def test_row_order(tiny_model: Path, batch: TrainBatch) -> None:
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    same(stepped(tiny_model, batch), stepped(tiny_model, batch.rows(order), 60))


def test_padding(tiny_model: Path, batch: TrainBatch) -> None:
    def wider(tensor: Tensor, fill: float) -> Tensor:
        return functional.pad(tensor, (0, 9), value=fill)

    nan = float("nan")
    padded = replace(
        batch,
        input_ids=wider(batch.input_ids, 63),
        attention_mask=wider(batch.attention_mask, False),
        loss_mask=wider(batch.loss_mask, False),
        logprobs=wider(batch.logprobs, nan),
        versions=wider(batch.versions, -1),
        advantages=wider(batch.advantages, nan),
        prox_logprobs=wider(batch.prox_logprobs, nan),
        temperatures=wider(batch.temperatures, nan),
    )
    same(stepped(tiny_model, batch), stepped(tiny_model, padded))


def test_a_lone_row_is_not_diluted_or_amplified(tiny_model: Path, batch: TrainBatch) -> None:
    """The average over the batch is the average over its tokens, not over its micro-batches."""
    whole, _ = stepped(tiny_model, batch, 1)
    losses = [stepped(tiny_model, batch.rows([i]))[0].metrics for i in range(len(batch))]
    total = sum(m["loss"] * m["loss_count"] for m in losses)
    assert whole.metrics["loss_count"] == batch.n_loss_tokens
    assert whole.metrics["loss"] == pytest.approx(total / batch.n_loss_tokens, rel=1e-4)
