"""One update of the policy: comparison logprobs, advantages, minibatches, optimiser steps.

Legend: N rows, T tokens.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from areal_agent.aio import collect
from areal_agent.algorithms.base import Algorithm
from areal_agent.backends.base import BackendHandle, LossSpec, StepResult
from areal_agent.trajectory import RolloutBatch, TrainBatch


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update did."""

    applied_steps: int
    """Optimiser steps that changed the weights; 0 means that there is nothing to publish."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    first_step: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the first optimiser step said, on weights that nothing had changed."""


async def update_policy(
    backend: BackendHandle,
    algorithm: Algorithm,
    spec: LossSpec,
    batch: RolloutBatch,
    *,
    version: int,
    n_minibatches: int,
    seed: int,
) -> UpdateResult:
    """Train on `batch` once.

    Rows without signal are dropped first; with none left, nothing is stepped.

    Args:
        backend: steps the weights.
        algorithm: makes the advantages.
        spec: names the algorithm's loss for the backend.
        batch: what was sampled.
        version: version of the trainer's present weights.
        n_minibatches: optimiser steps to cut the batch into.
        seed: of the cut.

    Raises:
        NonFiniteError: too many steps in a row had a non-finite gradient.
    """
    started = time.perf_counter()
    train_batch, told = algorithm.advantages(batch)
    metrics = {f"advantages/{name}": value for name, value in told.items()}
    if "prox_logprobs" in algorithm.needs and len(train_batch) > 0:
        prox = await backend.logprobs(train_batch)
        metrics |= sampler_mismatch(train_batch, prox, version)
        train_batch = replace(train_batch, prox_logprobs=prox)
    results: list[StepResult] = []
    if len(train_batch) > 0:
        cut = minibatches(train_batch, n_minibatches, seed)
        results = await collect(backend.step(train_batch.rows(rows), spec) for rows in cut)
    applied = [result for result in results if result.applied]
    metrics |= _averages(applied)
    metrics["update/applied_steps"] = len(applied)
    metrics["update/skipped_steps"] = len(results) - len(applied)
    metrics["update/rows"] = len(train_batch)
    metrics["update/tokens"] = int(train_batch.attention_mask.sum())
    metrics["update/loss_tokens"] = train_batch.n_loss_tokens if len(train_batch) else 0
    metrics["timeperf/update"] = time.perf_counter() - started
    return UpdateResult(len(applied), metrics, results[0].metrics if results else {})


def minibatches(batch: TrainBatch, n: int, seed: int) -> list[list[int]]:
    """Cut the rows into up to `n` lists; the rows of a group stay in one.

    Groups are shuffled by `seed`, then go, largest first, to the list with the fewest loss tokens.
    """
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(batch.group_ids.tolist()):
        groups.setdefault(group, []).append(row)
    tokens = batch.loss_mask.sum(1).tolist()
    members = list(groups.values())
    order = torch.randperm(len(members), generator=torch.Generator().manual_seed(seed % 2**63))
    shuffled = [members[i] for i in order.tolist()]
    weights = [sum(tokens[row] for row in rows) for rows in shuffled]
    by_size = sorted(range(len(shuffled)), key=lambda i: -weights[i])
    bins: list[list[int]] = [[] for _ in range(min(n, len(members)))]
    loads = [0] * len(bins)
    for i in by_size:
        lightest = loads.index(min(loads))
        bins[lightest] += shuffled[i]
        loads[lightest] += weights[i]
    return bins


def sampler_mismatch(batch: RolloutBatch, logprobs: torch.Tensor, version: int) -> dict[str, float]:
    """How far the trainer's logprobs are from the sampler's, over sampled tokens.

    For tokens that were sampled with the trainer's present weights (``version``) this is numerical
    error and shown apart, when there are any; for older ones it is drift.
    """
    difference = torch.where(batch.loss_mask, logprobs - batch.logprobs, 0.0).abs()
    out = {
        "mismatch/abs_mean": float(difference.sum()) / max(batch.n_loss_tokens, 1),
        "mismatch/abs_max": float(difference.max()),
    }
    current = batch.loss_mask & (batch.versions == version)
    if current.any():
        out["mismatch/current_abs_max"] = float(difference[current].max())
    return out


def _averages(results: Sequence[StepResult]) -> dict[str, float]:
    """Mean over optimiser steps; maxima stay maxima."""
    out: dict[str, float] = {}
    for name in {name for result in results for name in result.metrics}:
        values = [result.metrics[name] for result in results if name in result.metrics]
        is_max = name.endswith(("/max", "_max"))
        out[f"update/{name}"] = max(values) if is_max else sum(values) / len(values)
    return out
