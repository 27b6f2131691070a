"""Token logprobs against a plain forward pass of transformers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from numerics_support import make_batch, spoil
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from areal_agent.backends import logprobs as logprobs_module
from areal_agent.backends.local import LocalBackend
from areal_agent.backends.logprobs import has_plain_head, token_logprobs
from areal_agent.config.training import TrainEngineConfig
from areal_agent.models.load import load_causal_lm


def plain_logprobs(
    model: PreTrainedModel, ids: Tensor, attention_mask: Tensor, temperatures: Tensor
) -> Tensor:
    """Straight from the definition, with an attention mask and all logits, in float64."""
    logits = model(input_ids=ids, attention_mask=attention_mask).logits.double()
    logits[:, :-1] /= temperatures[:, 1:, None]
    logps = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros(len(ids), 1, dtype=torch.float64), logps], dim=1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, None])
@pytest.mark.parametrize("max_tokens_per_mb", [30, 8192])
def test_equal_to_transformers(
    tiny_model: Path, temperature: float | None, max_tokens_per_mb: int
) -> None:
    """S18: at one temperature, and where each turn has its own."""
    batch = make_batch(temperature=temperature)
    config = TrainEngineConfig(max_tokens_per_mb=max_tokens_per_mb)
    backend = LocalBackend(config, tiny_model, total_optimizer_steps=1, seed=0)
    got = backend.logprobs(batch)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        expected = plain_logprobs(model, batch.input_ids, batch.attention_mask, batch.temperatures)
    expected = torch.where(batch.loss_mask, expected, 0.0)
    assert got.dtype == torch.float32
    assert float((got - expected).abs().max()) < 1e-5
    assert expected[batch.loss_mask].std() > 0.5


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.5, -0.01815), (1.0, -0.12693)], ids=["half", "one"]
)
def test_temperature_by_hand(tiny_model: Path, temperature: float, expected: float) -> None:
    """Logits [2, 0], token 0."""
    model = load_causal_lm(tiny_model)
    head = nn.Linear(32, 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([2.0, 0.0]))
    model.set_output_embeddings(head)
    ids, mask = torch.tensor([[1, 0]]), torch.tensor([[False, True]])
    got = token_logprobs(model, ids, mask, torch.full((1, 2), temperature), plain_head=True)
    assert got[0, 0] == 0
    assert float(got[0, 1].detach()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperatures_must_be_above_zero(tiny_model: Path, temperature: float) -> None:
    model, ids = load_causal_lm(tiny_model), torch.ones(1, 3, dtype=torch.int64)
    mask, heat = torch.tensor([[False, True, False]]), torch.tensor([[0.0, 1.0, temperature]])
    token_logprobs(model, ids, mask, heat, plain_head=True)  # only trained tokens count
    with pytest.raises(ValueError, match="above 0"):
        token_logprobs(model, ids, ids > 0, heat, plain_head=True)


def test_what_is_in_the_padding_does_not_matter(tiny_model: Path) -> None:
    batch = make_batch()
    backend = LocalBackend(TrainEngineConfig(), tiny_model, total_optimizer_steps=1, seed=0)
    junk = torch.where(batch.attention_mask, batch.input_ids, -100)
    expected, got = backend.logprobs(batch), backend.logprobs(replace(batch, input_ids=junk))
    assert torch.equal(expected, got)


def gradients(model: PreTrainedModel, out: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    out.sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_pieces_of_the_head_give_the_same_gradient(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, model = make_batch(temperature=None), load_causal_lm(tiny_model)

    def run() -> Tensor:
        return token_logprobs(
            model, batch.input_ids, batch.loss_mask, batch.temperatures, plain_head=True
        )

    whole, whole_gradients = run(), gradients(model, run())
    monkeypatch.setattr(logprobs_module, "HEAD_TOKENS", 5)
    pieces, piece_gradients = run(), gradients(model, run())
    torch.testing.assert_close(pieces, whole)
    for name, gradient in whole_gradients.items():
        torch.testing.assert_close(piece_gradients[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head_tokens", [7, 4096])
def test_the_gradient_at_mixed_temperatures_is_the_sum_over_tokens(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, head_tokens: int
) -> None:
    """Beside each row alone, each token's logits divided by hand, with weights for the tokens."""
    monkeypatch.setattr(logprobs_module, "HEAD_TOKENS", head_tokens)
    batch, model = make_batch(temperature=None), load_causal_lm(tiny_model)
    weights = torch.randn(batch.input_ids.shape, generator=torch.Generator().manual_seed(4))
    together = token_logprobs(
        model, batch.input_ids, batch.loss_mask, batch.temperatures, plain_head=True
    )
    got = gradients(model, together * weights)
    terms: list[Tensor] = []
    for n, t in batch.loss_mask.nonzero().tolist():
        logits = model(input_ids=batch.input_ids[n : n + 1, :t]).logits[0, -1]
        logps = torch.log_softmax(logits / float(batch.temperatures[n, t]), -1)
        terms.append(weights[n, t] * logps[batch.input_ids[n, t]])
    assert len(batch.temperatures[batch.loss_mask].unique()) > 20
    for name, gradient in gradients(model, torch.stack(terms)).items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=1e-4)


def scaled_model() -> PreTrainedModel:
    return CohereForCausalLM(
        CohereConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            logit_scale=0.25,
            bos_token_id=0,
            eos_token_id=1,
            initializer_range=0.3,
        )
    ).eval()


def learnt_positions() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_positions=64,
            n_embd=32,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).eval()


@torch.no_grad()
@pytest.mark.parametrize(("make", "plain"), [(scaled_model, False), (learnt_positions, True)])
def test_other_models_get_their_own_logits(make: object, plain: bool) -> None:
    """Models that scale their logits take the slower path, and both paths tell the truth."""
    torch.manual_seed(0)
    model = make()  # type: ignore[operator]
    batch = make_batch(temperature=None)
    ids, mask, heat = batch.input_ids, batch.loss_mask, batch.temperatures
    assert has_plain_head(model) is plain
    expected = plain_logprobs(model, ids, batch.attention_mask, heat)
    got = token_logprobs(model, ids, mask, heat, plain_head=plain)
    expected = torch.where(batch.loss_mask, expected, 0.0)
    assert float((got - expected).abs().max()) < 1e-5
    if not plain:
        wrong = token_logprobs(model, ids, mask, heat, plain_head=True)
        assert float((wrong - expected).abs().max()) > 1e-2


def test_bfloat16_is_near(tiny_model: Path) -> None:
    batch = make_batch()
    full, half = (
        LocalBackend(
            TrainEngineConfig(dtype=dtype), tiny_model, total_optimizer_steps=1, seed=0
        ).logprobs(batch)
        for dtype in ("float32", "bfloat16")
    )
    difference = (full - half).abs().max()
    assert 1e-5 < float(difference) < 0.2
    assert spoil(half, batch.loss_mask, 0.0).equal(half)
