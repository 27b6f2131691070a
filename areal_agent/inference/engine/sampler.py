"""From logits to tokens: temperature, nucleus, top-k, penalties, and repeatable randomness.

The random number behind a token is a hash of the request's seed and the token's position, so a
reply does not depend on who shares the batch, and a reply that was interrupted goes on as it would
have. Logprobs are always those of the full softmax at the sampling temperature (greedy: at 1),
whatever filters and penalties did to the choice: that is what a trainer can compute again.
"""

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_agent.errors import EngineFault
from areal_agent.inference.engine.request import Sequence

LOGPROBS_CONVENTION = "full_softmax_at_sampling_temperature"
"""Name of the convention above, as answers report it."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_BANNED = -1e30


def derive_seed(seed: int, index: int = 0) -> int:
    """Mix a user's seed and the number of the choice into 64 well-spread bits."""
    return int(_mix(np.array([(seed + (index + 1) * _GOLDEN) & _MASK], dtype=np.uint64))[0])


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """One number in [0, 1) for each pair of seed and position."""
    x = _mix(seeds + positions.astype(np.uint64) * np.uint64(_GOLDEN))
    return ((x >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling settings of the rows of a batch, as tensors; made anew when the rows change."""

    sequences: SequenceOf[Sequence]
    seeds: NDArray[np.uint64]
    temperature: Tensor | None
    """[N, 1]; None when all are 1."""
    greedy: Tensor | None
    """[N] bool; None when no row is greedy."""
    all_greedy: bool
    filtered: list[int]
    """Rows with top_p or top_k."""
    shaped: list[int]
    """Rows with a penalty or a minimum length."""

    @classmethod
    def of(cls, sequences: SequenceOf[Sequence], device: torch.device) -> "SamplingBatch":
        """Collect the settings of `sequences`, in this order."""
        params = [s.request.params for s in sequences]
        temperatures = [p.temperature or 1.0 for p in params]
        greedy = [p.temperature == 0 for p in params]
        warm = any(t != 1.0 for t in temperatures)
        return cls(
            sequences=sequences,
            seeds=np.array([p.seed for p in params], dtype=np.uint64),
            temperature=torch.tensor(temperatures, device=device)[:, None] if warm else None,
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
            all_greedy=all(greedy),
            filtered=[
                i for i, p in enumerate(params) if p.temperature and (p.top_p < 1.0 or p.top_k > 0)
            ],
            shaped=[i for i, p in enumerate(params) if p.frequency_penalty or p.min_tokens],
        )


def sample(
    logits: Tensor, batch: SamplingBatch, positions: NDArray[np.int64]
) -> tuple[list[int], list[float]]:
    """Choose a token for each row of `logits` [N, V].

    `positions` are those that the new tokens will have. Returns tokens and their logprobs.

    Raises:
        EngineFault: the logits are not finite.
    """
    if batch.temperature is not None:
        logits = logits / batch.temperature
    logprobs = torch.log_softmax(logits, -1)
    scores = _shape_scores(logprobs, batch) if batch.shaped else logprobs
    if batch.all_greedy:
        token = scores.argmax(-1, keepdim=True)
        chance = torch.ones_like(token, dtype=torch.float32)
    else:
        token, chance = _draw(scores, batch, positions)
    picked = logprobs.gather(1, token)
    host = torch.cat((token.double(), picked.double(), chance.double()), 1).cpu().numpy()
    if not np.isfinite(host).all():
        raise EngineFault("the model's logits are not finite: its weights or its cache are broken")
    tokens: list[int] = host[:, 0].astype(np.int64).tolist()
    logprob_list: list[float] = host[:, 1].tolist()
    if (host[:, 2] <= 0).any():  # a rounding step of the running sum hit an impossible token
        for row in np.flatnonzero(host[:, 2] <= 0).tolist():
            tokens[row] = int(scores[row].argmax())
            logprob_list[row] = float(logprobs[row, tokens[row]])
    return tokens, logprob_list


def _draw(
    scores: Tensor, batch: SamplingBatch, positions: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Invert the cumulative distribution; returns tokens and their probabilities, [N, 1]."""
    probs = torch.softmax(scores, -1) if batch.shaped else scores.exp()
    if batch.filtered:
        rows = torch.tensor(batch.filtered, device=probs.device)
        params = [batch.sequences[i].request.params for i in batch.filtered]
        probs[rows] = _filter(
            probs[rows],
            torch.tensor([p.top_p for p in params], device=probs.device),
            torch.tensor([p.top_k or probs.shape[1] for p in params], device=probs.device),
        )
    total = probs.cumsum(-1)
    u = torch.from_numpy(uniforms(batch.seeds, positions)).to(probs.device)[:, None]
    token = torch.searchsorted(total, u * total[:, -1:], right=True)
    token.clamp_(max=probs.shape[1] - 1)
    chance = probs.gather(1, token)
    if batch.greedy is not None:
        greedy = batch.greedy[:, None]
        token = torch.where(greedy, scores.argmax(-1, keepdim=True), token)
        chance = torch.where(greedy, 1.0, chance)
    return token, chance


def _filter(probs: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Zero what lies outside the nucleus or the k likeliest; the likeliest always stays."""
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    before = ranked.cumsum(-1) - ranked
    rank = torch.arange(probs.shape[1], device=probs.device)
    keep = (before < top_p[:, None]) & (rank < top_k[:, None])
    return torch.zeros_like(probs).scatter_(1, order, ranked * keep)


def _shape_scores(logprobs: Tensor, batch: SamplingBatch) -> Tensor:
    """Apply penalties and minimum lengths to a copy."""
    scores = logprobs.clone()
    for row in batch.shaped:
        sequence = batch.sequences[row]
        params = sequence.request.params
        reply = sequence.tokens[sequence.prompt_length :]
        if params.frequency_penalty and reply:
            counts = Counter(reply)
            ids = torch.tensor(list(counts), device=scores.device)
            times = torch.tensor(list(counts.values()), device=scores.device)
            scores[row, ids] -= params.frequency_penalty / (params.temperature or 1.0) * times
        if len(reply) < params.min_tokens and params.stop_ids:
            scores[row, torch.tensor(sorted(params.stop_ids), device=scores.device)] = _BANNED
    return scores
