"""Sampling: exact filters, repeatable randomness, honest logprobs."""

from typing import Any

import numpy as np
import pytest
import torch

from areal_agent.errors import EngineFault
from areal_agent.inference.engine.request import GenerateRequest, SamplingParams, Sequence
from areal_agent.inference.engine.sampler import SamplingBatch, derive_seed, sample, uniforms

CPU = torch.device("cpu")


def rows(params: list[SamplingParams], reply: list[int] | None = None) -> list[Sequence]:
    sequences = [
        Sequence(GenerateRequest("r", [0], p), limit=10**6, on_done=lambda _: None) for p in params
    ]
    for sequence in sequences:
        for token in reply or []:
            sequence.append(token, -1.0, 0)
    return sequences


def draw(logits: torch.Tensor, n: int, reply: list[int] | None = None, **fields: Any) -> list[int]:
    """Sample `n` tokens from the same logits with different seeds."""
    params = [SamplingParams(seed=derive_seed(7, i), **fields) for i in range(n)]
    batch = SamplingBatch.of(rows(params, reply), CPU)
    return sample(logits.expand(n, -1).clone(), batch, np.full(n, 5))[0]


def test_uniforms_are_uniform_and_depend_on_seed_and_position() -> None:
    seeds = np.array([derive_seed(0, i) for i in range(4000)], dtype=np.uint64)
    u = uniforms(seeds, np.zeros(4000, dtype=np.int64))
    assert u.dtype == np.float32
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() < 1
    assert np.histogram(u, 10, (0, 1))[0] == pytest.approx(np.full(10, 400), abs=80)
    along = uniforms(np.full(4000, seeds[0]), np.arange(4000))
    assert np.histogram(along, 10, (0, 1))[0] == pytest.approx(np.full(10, 400), abs=80)
    assert abs(np.corrcoef(along[1:], along[:-1])[0, 1]) < 0.05


def test_seeds_of_choices_differ_and_repeat() -> None:
    seeds = {derive_seed(s, i) for s in range(50) for i in range(50)}
    assert len(seeds) == 2500
    assert derive_seed(3, 4) == derive_seed(3, 4)


def test_frequencies_follow_the_probabilities() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1])
    counts = np.bincount(draw(probs.log(), 8000), minlength=4) / 8000
    assert counts == pytest.approx(probs.numpy(), abs=0.02)


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_p": 0.74}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 1e-6}, {0}),
        ({"top_p": 0.9, "top_k": 3}, {0, 1, 2}),
        ({"temperature": 0.0}, {0}),
    ],
)
def test_filters_keep_exactly_the_right_tokens(fields: dict[str, Any], allowed: set[int]) -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    assert set(draw(logits, 500, **fields)) == allowed


def test_the_top_of_equal_tokens_keeps_k_of_them() -> None:
    assert len(set(draw(torch.zeros(10), 500, top_k=3))) == 3


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.5, -0.01815), (1.0, -0.12693), (0.0, -0.12693)]
)
def test_logprobs_are_those_of_the_full_softmax(temperature: float, expected: float) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=1,
        frequency_penalty=-2.0,
        min_tokens=3,
        stop_ids=frozenset({1}),
    )
    tokens, logprobs = sample(
        torch.tensor([[2.0, 0.0]]), SamplingBatch.of(rows([params]), CPU), np.array([1])
    )
    assert tokens == [0]
    assert logprobs == pytest.approx([expected], abs=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 50)
    params = [
        SamplingParams(seed=11),
        SamplingParams(seed=12, top_p=0.7),
        SamplingParams(seed=13, temperature=0.0),
        SamplingParams(seed=14, frequency_penalty=1.0, temperature=0.5),
        SamplingParams(seed=15, min_tokens=5, stop_ids=frozenset({1})),
    ]
    positions = np.arange(5) + 9
    together = sample(logits, SamplingBatch.of(rows(params, [3, 3, 4]), CPU), positions)
    for i in range(5):
        alone = sample(
            logits[i : i + 1],
            SamplingBatch.of(rows([params[i]], [3, 3, 4]), CPU),
            positions[i : i + 1],
        )
        assert alone[0] == together[0][i : i + 1]
        assert alone[1] == pytest.approx(together[1][i : i + 1], abs=1e-6)


def test_penalties_lower_what_was_sampled() -> None:
    logits = torch.tensor([2.0, 2.0, 0.0])
    plain = np.bincount(draw(logits, 2000, reply=[0, 0, 1]), minlength=3) / 2000
    shaped = (
        np.bincount(draw(logits, 2000, reply=[0, 0, 1], frequency_penalty=1.0), minlength=3) / 2000
    )
    expected = torch.softmax(logits - torch.tensor([2.0, 1.0, 0.0]), -1).numpy()
    assert plain == pytest.approx(torch.softmax(logits, -1).numpy(), abs=0.04)
    assert shaped == pytest.approx(expected, abs=0.04)


def test_stop_ids_wait_for_min_tokens() -> None:
    logits = torch.tensor([5.0, 0.0])
    fields: dict[str, Any] = {"min_tokens": 2, "stop_ids": frozenset({0})}
    assert set(draw(logits, 50, reply=[1], **fields)) == {1}
    assert 0 in draw(logits, 50, reply=[1, 1], **fields)


def test_impossible_tokens_are_never_sampled() -> None:
    logits = torch.full((1000,), -torch.inf)
    logits[[0, 400]] = 0.0
    assert set(draw(logits, 2000)) == {0, 400}


def test_broken_logits_are_a_fault() -> None:
    with pytest.raises(EngineFault, match="not finite"):
        draw(torch.tensor([0.0, float("nan")]), 1)
