"""The local backend where the contract does not reach: weights that are not finite, generators."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_agent.algorithms.sft import Sft
from areal_agent.backends.local import LocalBackend
from areal_agent.config.training import OptimizerConfig, TrainEngineConfig
from areal_agent.errors import ConfigError, NonFiniteError, TrainError
from areal_agent.trainer.sft import sft_batch
from areal_agent.trajectory import TrainBatch


def make(folder: Path) -> LocalBackend:
    return LocalBackend(TrainEngineConfig(), folder, total_optimizer_steps=4, seed=5)


def test_weights_that_are_not_finite_are_never_written(tiny_model: Path, tmp_path: Path) -> None:
    backend = make(tiny_model)
    with torch.no_grad():
        backend._model.get_input_embeddings().weight[3, 4] = math.inf
    for write in (backend.export, backend.save):
        with pytest.raises(NonFiniteError, match=r"embed_tokens\.weight' has 1 non-finite"):
            write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_random_state_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    backend = make(tiny_model)
    torch.rand(3)
    backend.save(tmp_path / "s")
    expected = torch.rand(4)
    torch.manual_seed(99)
    backend.load(tmp_path / "s")
    assert torch.equal(torch.rand(4), expected)


def test_the_seed_decides_the_random_state(tiny_model: Path) -> None:
    make(tiny_model)
    first = torch.rand(2)
    make(tiny_model)
    assert torch.equal(torch.rand(2), first)


def test_a_save_replaces_an_older_one(tiny_model: Path, tmp_path: Path) -> None:
    backend = make(tiny_model)
    backend.save(tmp_path / "s")
    (tmp_path / "s" / "left over").touch()
    backend.save(tmp_path / "s")
    names = sorted(path.name for path in (tmp_path / "s").iterdir())
    assert names == [
        "counters.json",
        "optimizer.safetensors",
        "random.safetensors",
        "weights.safetensors",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("counters.json", b"{"), ("counters.json", b"[1]"), ("weights.safetensors", b"\x80\x04junk")],
)
def test_damaged_files_are_refused(
    tiny_model: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    backend = make(tiny_model)
    backend.save(tmp_path / "s")
    (tmp_path / "s" / name).write_bytes(content)
    with pytest.raises(TrainError, match=str(tmp_path / "s")):
        backend.load(tmp_path / "s")


def test_counters_must_be_there(tiny_model: Path, tmp_path: Path) -> None:
    backend = make(tiny_model)
    backend.save(tmp_path / "s")
    (tmp_path / "s" / "counters.json").write_text('{"optimizer_steps": 1}', "utf-8")
    random = load_file(tmp_path / "s" / "random.safetensors")
    save_file({"other": random["cpu"]}, tmp_path / "s" / "random.safetensors")
    with pytest.raises(TrainError) as caught:
        backend.load(tmp_path / "s")
    assert "missing in counters: skipped_in_row, skipped_total" in str(caught.value)
    assert "missing in random: cpu" in str(caught.value)


def test_cuda_that_is_not_there(tiny_model: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match="'cuda'"):
        LocalBackend(TrainEngineConfig(device="cuda"), tiny_model, total_optimizer_steps=1, seed=0)


def test_bfloat16_learns_in_float32_weights(tiny_model: Path) -> None:
    config = TrainEngineConfig(dtype="bfloat16", optimizer=OptimizerConfig(lr=1e-2))
    backend = LocalBackend(config, tiny_model, total_optimizer_steps=9, seed=0)
    rows = [([2 + i + j for j in range(12)], [j > 3 for j in range(12)]) for i in range(8)]
    losses = [backend.step(sft_batch(rows), Sft().loss).metrics["loss"] for _ in range(9)]
    assert losses[-1] < 0.5 * losses[0]
    assert {p.dtype for p in backend._model.parameters()} == {torch.float32}


def test_rows_without_loss_tokens_cost_nothing_and_change_nothing(tiny_model: Path) -> None:
    batch = sft_batch([([3, 4, 5], [False, True, True]), ([6, 7], [False, True])])
    one_row = batch.rows([0])
    first_only = replace(batch, loss_mask=batch.loss_mask & torch.tensor([[True], [False]]))
    lone = replace(first_only, attention_mask=first_only.attention_mask.clone())
    lone.attention_mask[1, :] = False
    config = TrainEngineConfig(max_tokens_per_mb=1)

    def run(given: TrainBatch) -> dict[str, float]:
        backend = LocalBackend(config, tiny_model, total_optimizer_steps=9, seed=0)
        assert backend.logprobs(given)[0].tolist() == pytest.approx(
            backend.logprobs(one_row)[0].tolist(), abs=1e-6
        )
        return dict(backend.step(given, Sft().loss).metrics)

    expected = run(one_row)
    assert run(first_only) == pytest.approx(expected)
    assert run(lone) == pytest.approx(expected)
