"""The small Llama that the calculator example trains: about 0.3 M parameters."""

from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def small_llama_config(
    vocab_size: int,
    *,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
    max_position_embeddings: int = 512,
) -> LlamaConfig:
    """Three layers of width 96 with tied embeddings; one key-value head keeps decoding cheap."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )


def new_small_llama(config: LlamaConfig, *, seed: int) -> LlamaForCausalLM:
    """Make a fresh model; the same seed gives the same weights and leaves torch's state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.eval()
    return cast("LlamaForCausalLM", cast("Any", model).to(torch.float32))
