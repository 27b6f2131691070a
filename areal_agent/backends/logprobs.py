"""Logprobs of given tokens under a model, with gradient, at the temperatures of the sampler.

Legend: N rows, T tokens, K trained tokens, D width, V vocabulary. Entry [n, t] of the result is
log p(token t | tokens before t), so it comes from the logits at t - 1. Padding is on the right:
with causal attention no token sees it, so no attention mask is needed.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

HEAD_TOKENS = 4096
"""Trained tokens whose logits are held at a time."""


def token_logprobs(
    model: PreTrainedModel,
    input_ids: Tensor,
    mask: Tensor,
    temperatures: Tensor,
    *,
    plain_head: bool,
) -> Tensor:
    """Logprobs at `mask`, 0 elsewhere; nothing off the mask has a gradient.

    Args:
        model: a causal language model.
        input_ids: [N, T], valid ids everywhere.
        mask: [N, T] bool; column 0 is ignored, for its token has nothing before it.
        temperatures: [N, T], above 0 at `mask`; the logits of each token are divided by its own.
        plain_head: what `has_plain_head` says of `model`.

    Returns:
        float32 [N, T] on the model's device (float64 for a float64 model).
    """
    before = mask[:, 1:]  # [N, T - 1]: positions whose next token is wanted
    targets = input_ids[:, 1:][before]  # [K]
    heat = _divisors(temperatures[:, 1:][before])
    if plain_head:
        hidden = _hidden(model, input_ids[:, :-1])[before]  # [K, D]
        values = _head_logprobs(model.get_output_embeddings(), hidden, targets, heat)
    else:
        logits = cast("Any", model)(input_ids=input_ids[:, :-1], use_cache=False).logits
        values = _select(logits[before], targets, heat)
    out = values.new_zeros(input_ids.shape)
    rows, columns = torch.nonzero(before, as_tuple=True)
    return out.index_put((rows, columns + 1), values)


def has_plain_head(model: PreTrainedModel) -> bool:
    """Tell whether the logits are the output embeddings applied to the last hidden state.

    Then the head may be computed at trained positions only. Some models scale or cap their logits;
    for those the whole forward pass is used.
    """
    head = model.get_output_embeddings()
    base = getattr(model, model.base_model_prefix, None)
    if head is None or base is None or base is model:
        return False
    probe = torch.arange(min(8, model.config.vocab_size), device=model.device)[None, :]
    with torch.no_grad():
        whole: Tensor = cast("Any", model)(input_ids=probe, use_cache=False).logits
        split: Tensor = head(_hidden(model, probe))
    return whole.shape == split.shape and torch.allclose(whole, split, rtol=1e-4, atol=1e-5)


def _hidden(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    base = getattr(model, model.base_model_prefix)
    return base(input_ids=input_ids, use_cache=False).last_hidden_state


def _divisors(temperatures: Tensor) -> Tensor | None:
    """Return [K, 1], or None where nothing is to be divided."""
    if not bool((temperatures > 0).all()):
        raise ValueError(f"expected temperatures above 0, got {float(temperatures.min())!r}")
    return None if bool((temperatures == 1).all()) else temperatures[:, None]


def _head_logprobs(head: Any, hidden: Tensor, targets: Tensor, heat: Tensor | None) -> Tensor:
    """Logprobs [K] from hidden states [K, D], a piece at a time when there are many."""

    def piece(h: Tensor, t: Tensor, d: Tensor | None) -> Tensor:
        return _select(head(h), t, d)

    if len(targets) <= HEAD_TOKENS:
        return piece(hidden, targets, heat)
    pieces: list[Tensor] = []
    for i in range(0, len(targets), HEAD_TOKENS):
        part = slice(i, i + HEAD_TOKENS)
        args = hidden[part], targets[part], None if heat is None else heat[part]
        # Recomputed in the backward pass: logits of [HEAD_TOKENS, V] are never kept.
        pieces.append(cast("Tensor", checkpoint(piece, *args, use_reentrant=False)))
    return torch.cat(pieces)


def _select(logits: Tensor, targets: Tensor, heat: Tensor | None) -> Tensor:
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if heat is not None:
        logits = logits / heat
    return -functional.cross_entropy(logits, targets, reduction="none")
