"""One update: minibatches keep groups whole, and nothing is stepped without a signal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_support import ScriptedBackend, batch_of

from areal_agent.algorithms.build import build_algorithm
from areal_agent.backends.base import LossSpec
from areal_agent.trainer.update import UpdateResult, minibatches, sampler_mismatch, update_policy
from areal_agent.trajectory import RolloutBatch, TrainBatch

GRPO = build_algorithm("grpo", {"type": "grpo"})


async def update(backend: ScriptedBackend, batch: RolloutBatch, n: int = 2) -> UpdateResult:
    spec = LossSpec("grpo", {"type": "grpo"})
    return await update_policy(backend, GRPO, spec, batch, version=0, n_minibatches=n, seed=7)


def train_batch(*groups: list[float]) -> TrainBatch:
    made, _ = GRPO.advantages(batch_of(*groups))
    return made


async def test_each_minibatch_is_one_step() -> None:
    backend = ScriptedBackend()
    result = await update(backend, batch_of([0, 1], [1, 0], [0, 1], [1, 0]), n=2)
    assert [len(batch) for batch in backend.stepped] == [4, 4]
    assert result.applied_steps == 2
    assert result.metrics["update/rows"] == 8
    assert result.metrics["update/loss_tokens"] == 24
    assert result.metrics["update/tokens"] == 40


async def test_groups_without_signal_are_not_stepped_on() -> None:
    backend = ScriptedBackend()
    result = await update(backend, batch_of([1, 1], [0, 0]))
    assert backend.stepped == []
    assert result.applied_steps == 0
    assert result.metrics["update/loss_tokens"] == 0


async def test_only_rows_with_a_signal_are_compared_with_the_weights_of_the_step() -> None:
    backend = ScriptedBackend(logprob=-0.75)
    result = await update(backend, batch_of([1, 1], [0, 1]))
    assert result.metrics["mismatch/abs_mean"] == pytest.approx(0.25)
    (stepped,) = backend.stepped
    assert stepped.prox_logprobs[stepped.loss_mask].tolist() == [-0.75] * 6


async def test_without_decoupling_nothing_is_recomputed() -> None:
    backend = ScriptedBackend(logprob=-0.75)
    plain = build_algorithm("grpo", {"type": "grpo", "use_decoupled_loss": False})
    spec = LossSpec("grpo", {"type": "grpo", "use_decoupled_loss": False})
    batch = batch_of([0, 1])
    result = await update_policy(backend, plain, spec, batch, version=0, n_minibatches=1, seed=7)
    assert "mismatch/abs_mean" not in result.metrics
    assert backend.stepped[0].prox_logprobs.equal(batch.logprobs)


async def test_skipped_steps_are_counted_and_leave_the_averages_alone() -> None:
    backend = ScriptedBackend(applied=[False, True])
    result = await update(backend, batch_of([0, 1], [1, 0], [1, 0]), n=2)
    kept = backend.stepped[1]
    assert result.applied_steps == 1
    assert result.metrics["update/skipped_steps"] == 1
    assert result.metrics["update/loss"] == len(kept)


async def test_maxima_stay_maxima_and_averages_average() -> None:
    backend = ScriptedBackend()
    result = await update(backend, batch_of([0, 1], [1, 0], [1, 0]), n=2)
    sizes = [len(batch) for batch in backend.stepped]
    assert sorted(sizes) == [2, 4]
    assert result.metrics["update/ratio_max"] == 4
    assert result.metrics["update/loss"] == 3


@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=12),
    n=st.integers(1, 6),
    seed=st.integers(0, 2**63),
)
def test_minibatches_are_a_partition_that_keeps_groups_whole(
    sizes: list[int], n: int, seed: int
) -> None:
    batch = train_batch(*[[float(i % 2) for i in range(size)] for size in sizes])
    cut = minibatches(batch, n, seed)
    assert sorted(row for rows in cut for row in rows) == list(range(len(batch)))
    assert len(cut) == min(n, len(sizes))
    homes: dict[int, int] = {}
    for home, rows in enumerate(cut):
        for row in rows:
            group = int(batch.group_ids[row])
            assert homes.setdefault(group, home) == home
    assert minibatches(batch, n, seed) == cut


def test_mismatch_tells_drift_of_old_tokens_from_error_of_new_ones() -> None:
    batch = batch_of([0, 1])
    versions = batch.versions.clone()
    versions[0][batch.loss_mask[0]] = 4
    versions[1][batch.loss_mask[1]] = 5
    moved = batch.logprobs.clone()
    moved[0] += 0.25
    mixed = RolloutBatch(
        **{name: getattr(batch, name) for name in RolloutBatch.__dataclass_fields__}
        | {"versions": versions}
    )
    got = sampler_mismatch(mixed, moved, 5)
    assert got["mismatch/abs_max"] == pytest.approx(0.25)
    assert got["mismatch/abs_mean"] == pytest.approx(0.125)
    assert got["mismatch/current_abs_max"] == 0
    assert "mismatch/current_abs_max" not in sampler_mismatch(mixed, moved, 6)
