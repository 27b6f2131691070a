"""Batches with known contents for the tests of numbers."""

import torch
from torch import Tensor

from areal_agent.trajectory import NO_VERSION, TrainBatch

VOCAB = 64


def make_batch(
    n_rows: int = 12,
    *,
    seed: int = 0,
    group_size: int = 4,
    temperature: float | None = 1.0,
    shortest: int = 6,
    longest: int = 24,
) -> TrainBatch:
    """Random rows of uneven length; about half of each row is trained on, in turns.

    Without a temperature each turn has one of its own.
    """
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (n_rows,), generator=g)
    width = int(lengths.max())
    columns = torch.arange(width)[None, :]
    attention_mask = columns < lengths[:, None]
    sampled = (columns % 7 >= 3) & attention_mask
    noise = torch.randn(n_rows, width, generator=g)
    old = -2.0 + 0.5 * torch.randn(n_rows, width, generator=g)
    by_turn = 0.4 + 1.2 * torch.rand(n_rows, longest // 7 + 1, generator=g)
    heat = by_turn[:, torch.arange(width) // 7]
    if temperature is not None:
        heat = torch.full_like(heat, temperature)
    return TrainBatch(
        input_ids=torch.where(
            attention_mask, torch.randint(2, VOCAB, (n_rows, width), generator=g), 0
        ),
        attention_mask=attention_mask,
        loss_mask=sampled,
        logprobs=torch.where(sampled, old + 0.1 * noise, 0.0),
        versions=torch.where(sampled, 0, NO_VERSION).int(),
        rewards=torch.rand(n_rows, generator=g),
        group_ids=torch.arange(n_rows) // group_size,
        episode_ids=torch.arange(n_rows),
        truncated=torch.zeros(n_rows, dtype=torch.bool),
        temperatures=torch.where(sampled, heat, 1.0),
        advantages=torch.randn(n_rows, 1, generator=g).expand(n_rows, width).clone(),
        prox_logprobs=torch.where(sampled, old, 0.0),
    )


def spoil(tensor: Tensor, mask: Tensor, value: float) -> Tensor:
    """Put `value` everywhere off `mask`."""
    return torch.where(mask, tensor, torch.tensor(value, dtype=tensor.dtype))
