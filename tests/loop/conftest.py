"""Models with a tokenizer for whole runs, made once."""

from pathlib import Path

import pytest

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)


def make_model(folder: Path, *, hidden: int, layers: int) -> Path:
    """Write a random Llama that reads and writes single characters."""
    from transformers import LlamaConfig

    from areal_agent.data.tokenizer import build_word_tokenizer
    from areal_agent.models.export import export_hf
    from areal_agent.models.small import new_small_llama

    tokenizer = build_word_tokenizer([], chat_template=TEMPLATE)
    source = folder.with_name(f"{folder.name}-tokenizer")
    tokenizer.save_pretrained(source)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    export_hf(new_small_llama(config, seed=0), folder, source)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 30 000 parameters."""
    return make_model(tmp_path_factory.mktemp("models") / "small", hidden=32, layers=2)


@pytest.fixture(scope="session")
def heavy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 20 MB: publishing it takes long enough to be interrupted."""
    return make_model(tmp_path_factory.mktemp("models") / "heavy", hidden=384, layers=4)
