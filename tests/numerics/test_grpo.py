"""GRPO as an algorithm: what it needs, what it drops, and what it does not look at."""

from dataclasses import fields, replace

import pytest
import torch
from numerics_support import make_batch, spoil

from areal_agent.algorithms.build import build_algorithm, build_loss
from areal_agent.algorithms.grpo import Grpo
from areal_agent.backends.base import LossSpec
from areal_agent.backends.losses import loss_from_spec
from areal_agent.config.algorithm import GrpoConfig
from areal_agent.errors import ConfigError
from areal_agent.trajectory import RolloutBatch, TrainBatch


def as_rollout(batch: TrainBatch) -> RolloutBatch:
    return RolloutBatch(**{f.name: getattr(batch, f.name) for f in fields(RolloutBatch)})


def test_decoupled_needs_prox_logprobs() -> None:
    batch = make_batch()
    decoupled = Grpo(GrpoConfig())
    assert decoupled.needs == {"prox_logprobs"}
    assert Grpo(GrpoConfig(use_decoupled_loss=False)).needs == frozenset()
    train, _ = decoupled.advantages(as_rollout(batch))
    assert torch.equal(train.prox_logprobs, batch.logprobs)


def test_groups_without_signal_are_dropped() -> None:
    batch = make_batch(8)
    rewards = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    rollout = replace(as_rollout(batch), rewards=rewards)
    train, metrics = Grpo(GrpoConfig()).advantages(rollout)
    assert train.group_ids.tolist() == [1] * 4
    assert torch.equal(train.input_ids, batch.input_ids[4:])
    assert torch.equal(train.prox_logprobs, batch.logprobs[4:])
    assert metrics["rows_dropped"] == 4
    assert metrics["groups_without_signal"] == 0.5
    assert metrics["reward"] == pytest.approx(5 / 8)
    kept, _ = Grpo(GrpoConfig(drop_zero_variance=False)).advantages(rollout)
    assert len(kept) == 8
    assert (kept.advantages[:4] == 0).all()


def test_all_rows_may_be_dropped() -> None:
    batch = make_batch(4)
    rollout = replace(as_rollout(batch), rewards=torch.ones(4))
    train, metrics = Grpo(GrpoConfig()).advantages(rollout)
    assert len(train) == 0
    assert train.n_loss_tokens == 0
    assert metrics["rows_dropped"] == 4


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf"), 1e9])
def test_masked_positions_change_no_bit(decoupled: bool, junk: float) -> None:
    algorithm = Grpo(GrpoConfig(use_decoupled_loss=decoupled))
    batch = make_batch()
    mask = batch.loss_mask
    base = batch.prox_logprobs + 0.3 * torch.sin(torch.arange(mask.numel()).view_as(mask))
    clean = base.clone().requires_grad_()
    dirty = spoil(base, mask, junk).requires_grad_()
    spoilt = replace(
        batch,
        logprobs=spoil(batch.logprobs, mask, junk),
        prox_logprobs=spoil(batch.prox_logprobs, mask, junk),
        advantages=spoil(batch.advantages, mask, junk),
    )
    expected, got = algorithm.loss(clean, batch), algorithm.loss(dirty, spoilt)
    expected.loss.backward()
    got.loss.backward()
    assert torch.equal(expected.loss, got.loss)
    assert clean.grad is not None
    assert clean.grad[mask].abs().min() >= 0
    assert (clean.grad != 0).sum() > 10
    assert torch.equal(clean.grad, dirty.grad)
    for name, (total, count) in expected.sums.items():
        assert torch.equal(total, got.sums[name][0]), name
        assert torch.equal(count, got.sums[name][1]), name
    assert torch.equal(expected.maxima["ratio_max"], got.maxima["ratio_max"])


def test_huge_log_ratios_stay_finite() -> None:
    algorithm = Grpo(GrpoConfig())
    batch = make_batch()
    logprobs = (batch.prox_logprobs + 200.0).requires_grad_()
    out = algorithm.loss(logprobs, batch)
    out.loss.backward()
    assert torch.isfinite(out.loss.detach())
    assert torch.isfinite(logprobs.grad).all()


def test_losses_are_found_by_name() -> None:
    settings = GrpoConfig(eps_clip=0.1).model_dump()
    batch = make_batch()
    logprobs = batch.prox_logprobs + 0.15
    by_spec = loss_from_spec(LossSpec("grpo", settings))(logprobs, batch)
    narrow = Grpo(GrpoConfig(eps_clip=0.1)).loss(logprobs, batch)
    wide = Grpo(GrpoConfig()).loss(logprobs, batch)
    assert torch.equal(by_spec.loss, narrow.loss)
    assert not torch.equal(by_spec.loss, wide.loss)
    assert build_algorithm("areal_agent.algorithms.grpo:Grpo", settings).needs


def test_wrong_names_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="grpoo"):
        build_loss("grpoo", {})
    with pytest.raises(ConfigError, match="eps_clipp"):
        build_loss("grpo", {"eps_clipp": 0.2})
    with pytest.raises(ConfigError, match="sft has no settings"):
        build_loss("sft", {"lr": 1.0})


def test_sft_is_cross_entropy_on_the_mask() -> None:
    batch = make_batch()
    logprobs = spoil(batch.prox_logprobs, batch.loss_mask, float("nan")).requires_grad_()
    out = build_loss("sft", {})(logprobs, batch)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(-float(batch.prox_logprobs[batch.loss_mask].sum()))
    assert torch.equal(logprobs.grad, -batch.loss_mask.float())
    assert int(out.count) == batch.n_loss_tokens
