"""Supervised fine-tuning learns what it is shown, and nothing else."""

from pathlib import Path

import pytest

from areal_agent.algorithms.sft import Sft
from areal_agent.backends.base import StepResult
from areal_agent.config.experiment import SFTConfig
from areal_agent.config.training import OptimizerConfig
from areal_agent.errors import DataError
from areal_agent.trainer.sft import Row, SFTTrainer, sft_backend, sft_batch
from areal_agent.trajectory import TrainBatch

CONFIG = SFTConfig(
    experiment_name="t", batch_size=8, total_train_steps=40, optimizer=OptimizerConfig(lr=1e-2)
)


def rows(n: int = 24) -> list[Row]:
    """Count up from a random start; only the last four tokens are learnt."""
    lengths = [8 + i % 3 for i in range(n)]
    return [
        ([2 + (i * 7 + j) % 60 for j in range(length)], [j >= length - 4 for j in range(length)])
        for i, length in enumerate(lengths)
    ]


def test_batch() -> None:
    batch = sft_batch([([5, 6, 7], [False, True, True]), ([8, 9], [False, True])])
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.attention_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.loss_mask.tolist() == [[False, True, True], [False, True, False]]
    assert (batch.temperatures[batch.loss_mask] == 1.0).all()


@pytest.mark.parametrize(
    "row", [([1, 2], [False]), ([1, 2], [False, False]), ([1, 2], [True, True]), ([], [])]
)
def test_rows_that_cannot_be_learnt(row: Row) -> None:
    with pytest.raises(DataError, match="row 1: expected"):
        sft_batch([([1, 2], [False, True]), row])


def test_no_rows(tiny_model: Path) -> None:
    with pytest.raises(DataError, match="got none"):
        SFTTrainer(CONFIG, sft_backend(CONFIG, tiny_model), [])


def test_it_learns(tiny_model: Path) -> None:
    trainer = SFTTrainer(CONFIG, sft_backend(CONFIG, tiny_model), rows())
    losses: list[float] = []
    assert trainer.train(stop=lambda n: losses.append(trainer.metrics["loss"]) or False, every=10)
    assert len(losses) == 4
    assert losses[0] > 1.0
    assert losses[-1] < 0.3 * losses[0]


def test_the_seed_decides_everything(tiny_model: Path) -> None:
    def run(seed: int) -> float:
        config = CONFIG.model_copy(update={"seed": seed, "total_train_steps": 5})
        trainer = SFTTrainer(config, sft_backend(config, tiny_model), rows())
        trainer.train()
        return trainer.metrics["loss"]

    assert run(1) == run(1)
    assert run(1) != run(2)


class Recorder:
    """A backend that only takes down what it is to train on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def step(self, batch: TrainBatch, loss: object) -> StepResult:
        self.batches.append(batch.input_ids[:, 1].tolist())
        return StepResult(applied=True, metrics={"loss": 0.0, "grad_norm": 0.0, "lr": 0.0})


def test_every_row_once_an_epoch() -> None:
    backend = Recorder()
    data: list[Row] = [([1, i], [False, True]) for i in range(12)]
    config = CONFIG.model_copy(update={"total_train_steps": 6, "batch_size": 4})
    assert SFTTrainer(config, backend, data).train() == 6  # type: ignore[arg-type]
    first, second = (
        [i for b in half for i in b] for half in (backend.batches[:3], backend.batches[3:])
    )
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


def test_stop_ends_it_and_train_goes_on() -> None:
    backend, asked = Recorder(), list[int]()
    data: list[Row] = [([1, 2], [False, True])]
    trainer = SFTTrainer(CONFIG, backend, data)  # type: ignore[arg-type]

    def stop(steps: int) -> bool:
        asked.append(steps)
        return steps >= 9

    assert trainer.train(stop=stop, every=3) == 9
    assert asked == [3, 6, 9]
    assert len(backend.batches) == 9
    assert trainer.train(every=3) == 40
    assert len(backend.batches) == 40


def test_the_loss_is_the_mean_negative_logprob(tiny_model: Path) -> None:
    batch = sft_batch(rows(4))
    backend = sft_backend(CONFIG, tiny_model)
    expected = -float(backend.logprobs(batch).sum()) / batch.n_loss_tokens
    assert backend.step(batch, Sft().loss).metrics["loss"] == pytest.approx(expected, rel=1e-4)
