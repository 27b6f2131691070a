"""Model folders: what is loaded, what is refused, and what an export holds."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from areal_agent.errors import ConfigError, NonFiniteError
from areal_agent.models.atomic_folder import atomic_folder
from areal_agent.models.export import export_hf
from areal_agent.models.load import load_causal_lm, pick_device, resolve_model
from areal_agent.models.small import new_small_llama, small_llama_config


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tokenizer folder with a chat template and a file that is no business of ours."""
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(199)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="w1",
        chat_template="{{ messages[0].content }}",
    )
    tokenizer.save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "notes.txt").write_text("private", "utf-8")
    return tmp_path / "source"


def test_small_llama_is_small_and_repeatable() -> None:
    config = small_llama_config(199, eos_token_id=1, pad_token_id=0)
    before = torch.get_rng_state()
    a, b = new_small_llama(config, seed=3), new_small_llama(config, seed=3)
    c = new_small_llama(config, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert 300_000 < sum(p.numel() for p in a.parameters()) < 330_000
    assert config.num_key_value_heads == 1
    assert a.lm_head.weight is a.model.embed_tokens.weight
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_an_export_is_an_ordinary_folder(
    tmp_path: Path, source: Path, dtype: torch.dtype | None
) -> None:
    model = new_small_llama(small_llama_config(199, eos_token_id=1, pad_token_id=0), seed=0)
    export_hf(model, tmp_path / "out", source, storage_dtype=dtype)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert "notes.txt" not in names
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    ids = torch.arange(24).view(2, 12)
    with torch.no_grad():
        expected, got = model(ids).logits, again(ids).logits
    stored = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["dtype"]
    if dtype is None:
        assert torch.equal(expected, got)
        assert stored == "float32"
    else:
        assert 1e-5 < float((expected - got).abs().max()) < 0.1
        assert stored == "bfloat16"
        weights = load_file(tmp_path / "out" / "model.safetensors")
        assert {w.dtype for w in weights.values()} == {torch.bfloat16}
        assert (tmp_path / "out" / "model.safetensors").stat().st_size < 700_000
    assert next(model.parameters()).dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("w5 w7")["input_ids"] == [5, 7]
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "w9"}], tokenize=False) == "w9"
    )


def test_an_export_replaces_an_older_one(tmp_path: Path, source: Path) -> None:
    model = new_small_llama(small_llama_config(199), seed=0)
    export_hf(model, tmp_path / "out", source)
    (tmp_path / "out" / "stale").touch()
    export_hf(model, tmp_path / "out", source)
    assert not (tmp_path / "out" / "stale").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_weights_that_are_not_finite_stay_here(tmp_path: Path, source: Path) -> None:
    model = new_small_llama(small_llama_config(199), seed=0)
    export_hf(model, tmp_path / "out", source)
    good = (tmp_path / "out" / "model.safetensors").read_bytes()
    with torch.no_grad():
        model.model.norm.weight[2] = math.nan
    with pytest.raises(NonFiniteError, match=r"'model\.norm\.weight' has 1 non-finite of 96"):
        export_hf(model, tmp_path / "out", source)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == good
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_failed_body_leaves_the_old_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "f") as fresh:
        (fresh / "a").write_text("1", "utf-8")

    def fail() -> None:
        with atomic_folder(tmp_path / "f") as fresh:
            (fresh / "a").write_text("2", "utf-8")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (tmp_path / "f" / "a").read_text("utf-8") == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_loading(tiny_model: Path) -> None:
    model = load_causal_lm(tiny_model)
    assert not model.training
    assert model.dtype == torch.float32
    assert model.config._attn_implementation == "sdpa"
    assert load_causal_lm(tiny_model, torch.bfloat16).dtype == torch.bfloat16
    assert resolve_model(str(tiny_model)) == tiny_model


def test_missing_folder() -> None:
    with pytest.raises(ConfigError, match="'/no/such/model' does not exist: set model to a local"):
        resolve_model("/no/such/model")


@pytest.mark.parametrize("name", ["builtin:nothing", "builtin:", "builtin:..", "builtin:a/../.."])
def test_unknown_built_in(name: str) -> None:
    with pytest.raises(ConfigError, match="got model 'builtin:"):
        resolve_model(name)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


def test_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match=r"model\.safetensors, got none"):
        resolve_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigError, match=r"got only pytorch_model\.bin"):
        load_causal_lm(tmp_path)


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_missing_weights_are_not_made_up(tiny_model: Path, tmp_path: Path) -> None:
    folder = copied(tiny_model, tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        load_causal_lm(folder)


def test_damaged_weights(tiny_model: Path, tmp_path: Path) -> None:
    folder = copied(tiny_model, tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_causal_lm(folder)


def test_unknown_architecture(tiny_model: Path, tmp_path: Path) -> None:
    folder = copied(tiny_model, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["model_type"] = "no-such-type"
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ConfigError, match="no-such-type"):
        load_causal_lm(folder)


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert pick_device("auto") == torch.device(expected)
