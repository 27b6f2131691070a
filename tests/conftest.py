"""What tests of several folders share: one tiny model, made once."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: two Llama layers of width 32, 64 tokens, fixed random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from areal_agent.models.export import export_hf

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    source = folder.parent / "source"
    source.mkdir()
    export_hf(model, folder, source)
    return folder
