"""The shipped starting point is what `make_model.py` makes, and right one time in five."""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from areal_agent.data.chat import ChatFormat
from areal_agent.models.load import load_causal_lm, resolve_model
from areal_agent.registry import load_script

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
make_model = load_script(EXAMPLE / "make_model.py")


@pytest.fixture(scope="module")
def shipped() -> Path:
    return resolve_model("builtin:calculator")


def test_it_is_small_and_says_where_it_comes_from(shipped: Path) -> None:
    files = {path.name: path.stat().st_size for path in shipped.iterdir()}
    assert sum(files.values()) < 2 * 2**20
    assert {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "provenance.json",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= files.keys()
    facts = json.loads((shipped / "provenance.json").read_text(encoding="utf-8"))
    low, high = make_model.ACCEPTED
    assert low <= facts["accuracy"] <= high
    assert facts["n_parameters"] == sum(p.numel() for p in load_causal_lm(shipped).parameters())


def test_it_is_an_ordinary_model_in_bfloat16_with_one_key_value_head(shipped: Path) -> None:
    config = json.loads((shipped / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 1)
    assert (config["dtype"], config["tie_word_embeddings"]) == ("bfloat16", True)
    model = load_causal_lm(shipped)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_it_speaks_through_the_examples_own_template(shipped: Path) -> None:
    chat = ChatFormat.from_folder(shipped)
    template = (EXAMPLE / "chat_template.jinja").read_text(encoding="utf-8")
    assert chat.tokenizer.chat_template == template
    assert isinstance(chat.tokenizer, PreTrainedTokenizerFast)
    ids = chat.tokenizer.encode("[20*23]<eos>", add_special_tokens=False)
    assert "tool_calls" in chat.parse_reply(ids)
    for row in make_model.task.held_out_problems(200):
        prompt = chat.prompt_ids(row["messages"])
        assert chat.tokenizer.unk_token_id not in prompt
        assert chat.decode(prompt) == row["messages"][0]["content"] + "\n"
        assert len(prompt) < 40


def test_it_solves_about_one_held_out_problem_in_five(shipped: Path) -> None:
    rows = make_model.task.held_out_problems(384, seed=5)
    result = asyncio.run(make_model.evaluate(shipped, rows))
    assert result.n_failed == 0
    assert 0.12 < result.mean < 0.28
    calls = [episode.metrics["tool_calls"] > 0 for episode in result.episodes]
    assert 0.2 < sum(calls) / len(calls) < 0.45


def test_an_untrained_start_solves_nothing(tmp_path: Path) -> None:
    make_model.make_start(tmp_path / "start", seed=3)
    chat = ChatFormat.from_folder(tmp_path / "start")
    assert chat.eos_token_ids == {chat.tokenizer.eos_token_id}
    result = asyncio.run(
        make_model.evaluate(tmp_path / "start", make_model.task.held_out_problems(32))
    )
    assert (result.mean, result.n_failed) == (0.0, 0)


def test_demonstrations_are_learnt_from_the_replies_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_model, "N_DEMONSTRATIONS", 20)
    make_model.make_start(tmp_path / "start", seed=3)
    chat = ChatFormat.from_folder(tmp_path / "start")
    rows = make_model.demonstrations(chat, seed=3)
    assert len(rows) == 20
    for ids, mask in rows:
        learnt = chat.decode([t for t, m in zip(ids, mask, strict=True) if m])
        assert learnt.startswith(("[", "A"))
        assert learnt.endswith("<eos>")
        assert ";" not in learnt
