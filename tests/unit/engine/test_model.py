"""The engine's forward against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB, load, make_model, reference_logprobs
from transformers import AutoConfig

from areal_agent.errors import ConfigError
from areal_agent.inference.engine.fallback import FallbackModel, load_reference
from areal_agent.inference.engine.load import load_model, self_check
from areal_agent.inference.engine.shape import why_not_dense

CPU = torch.device("cpu")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-all-kv-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama-llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama-yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3": ("qwen3", {}),
    "qwen3-untied": ("qwen3", {"tie_word_embeddings": False}),
}


def forward(folder: Path, row: list[int]) -> torch.Tensor:
    model = load_reference(folder, dtype=torch.float32, device=CPU)
    with torch.inference_mode():
        return model(input_ids=torch.tensor([row]), use_cache=False).logits[0]


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_decode_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, overrides = MODELS[name]
    folder = make_model(tmp_path, kind, **overrides)
    model = load(folder)
    rows = np.random.default_rng(0).integers(VOCAB, size=(3, 90)).tolist()
    lengths = [5, 40, 62]  # decoding crosses the first size of the cache
    found = [model.prefill(0, [r[:n] for r, n in zip(rows, lengths, strict=True)], [0, 0, 0])]
    for step in range(20):
        at = np.array(lengths) + step
        found.append(model.decode(np.array([r[i] for r, i in zip(rows, at, strict=True)]), at))
    ours = torch.stack(found, 1)
    for row, length, logits in zip(rows, lengths, ours, strict=True):
        theirs = forward(folder, row)[length - 1 : length + 20]
        assert (logits - theirs).abs().max() < 1e-4
        assert theirs.std() > 0.5  # the comparison means something


def test_the_comparison_sees_a_small_change(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    model = load(folder)
    reference = load_reference(folder, dtype=torch.float32, device=CPU)
    assert self_check(model, reference).max() < 1e-4
    with torch.no_grad():
        reference.model.layers[1].self_attn.k_proj.weight[0, 0] += 0.05
    assert self_check(model, reference).max() > 1e-4


def test_continuing_a_prefix_equals_computing_it_at_once(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    row = np.random.default_rng(1).integers(VOCAB, size=50).tolist()
    model = load(folder)
    at_once = model.prefill(0, [row], [0])
    model.prefill(3, [row[:20], row[:9]], [0, 0])
    model.copy_slot(3, 1, 20)
    model.swap_slots(4, 2, 9)
    in_two = model.prefill(1, [row[20:], row[9:]], [20, 9])
    assert (in_two - at_once).abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_score_equals_transformers(temperature: float, tmp_path: Path) -> None:
    folder = make_model(tmp_path, "qwen2")
    rows = [np.random.default_rng(n).integers(VOCAB, size=n).tolist() for n in (1, 2, 70)]
    found = load(folder).score(rows, temperature)
    for row, ours in zip(rows, found, strict=True):
        assert ours == pytest.approx(reference_logprobs(folder, row, temperature), abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_loading_checks_itself(kind: str, dtype: str, tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, kind), dtype=dtype, device="cpu")
    assert loaded.runner.reuses_prefixes
    assert (loaded.max_model_len, loaded.eos_ids) == (256, frozenset({1}))


def test_bfloat16_is_what_the_cache_holds(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    runner: Any = load_model(folder, dtype="bfloat16", device="cpu").runner
    row = list(range(30))
    ours = runner.prefill(0, [row], [0])[0].log_softmax(-1)
    theirs = forward(folder, row)[-1].log_softmax(-1)
    assert runner._cache.data.dtype == torch.bfloat16
    assert 1e-4 < (ours - theirs).abs().max() < 0.5


def test_another_architecture_runs_and_says_that_it_is_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tiny_models import byte_tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=1,
        )
    ).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype="float32", device="cpu")
    assert isinstance(loaded.runner, FallbackModel)
    assert "slower" in caplog.text
    reference = load_reference(tmp_path, dtype=torch.float32, device=CPU)
    assert self_check(loaded.runner, reference).max() < 1e-4
    assert loaded.runner.score([[5, 6, 7]], 1.0)[0] == pytest.approx(
        reference_logprobs(tmp_path, [5, 6, 7]), abs=1e-5
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope type",
        ),
        ({"hidden_act": "gelu"}, "activation"),
    ],
)
def test_unknown_variants_are_left_to_transformers(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(make_model(tmp_path, **change))
    assert reason in (why_not_dense(config) or "")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"without config\.json"):
        load_model(tmp_path, dtype="float32", device="cpu")
    make_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="none: export"):
        load_model(tmp_path, dtype="float32", device="cpu")
