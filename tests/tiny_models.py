"""Tiny random models with a byte-level tokenizer, and a runner that can be held between steps."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from areal_agent.inference.engine.engine import Engine
from areal_agent.inference.engine.fallback import load_reference
from areal_agent.inference.engine.model import DenseModel

CONFIGS: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
SPECIALS = ["<pad>", "<eos>", "<user>", "<assistant>"]
VOCAB = 256 + len(SPECIALS)
EOS = 1
TEMPLATE = (
    "{% for m in messages %}<{{ 'assistant' if m.role == 'assistant' else 'user' }}>"
    "{{ m.content or '' }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that characters beyond ASCII are split over tokens."""
    vocab = {text: i for i, text in enumerate(SPECIALS)}
    for text in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[text] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        tool_parser="bracket",
    )


def make_model(folder: Path, kind: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Save a random model whose logits are far from uniform; biases and norms are random too."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "eos_token_id": EOS,
        "bos_token_id": None,
    }
    if kind == "qwen3":
        fields["head_dim"] = 12
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(CONFIGS[kind](**{**fields, **overrides}))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or "bias" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def load(folder: Path) -> "HeldModel":
    """Load a folder into the engine's own forward."""
    reference = load_reference(folder, dtype=torch.float32, device=torch.device("cpu"))
    return HeldModel.from_folder(
        folder, reference.config, dtype=torch.float32, device=torch.device("cpu")
    )


class HeldModel(DenseModel):
    """A model whose decoding can be stopped at a step, so that tests act at a known point."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hold_at: int | None = None
        self.steps = 0
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def decode(self, tokens: Any, positions: Any) -> torch.Tensor:
        self.steps += 1
        if self.steps == self.hold_at:
            self.reached.set()
            assert self.go_on.wait(20), "nobody let the engine go on"
            if self.error is not None:
                raise self.error
        return super().decode(tokens, positions)

    async def wait_held(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20), "the step was never reached"

    async def pause_here(self, engine: Engine, mode: Any) -> None:
        """Once held: pause right after this step."""
        await self.wait_held()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.pause(mode))
            await asyncio.sleep(0)  # the command is posted
            self.go_on.set()


def reference_logprobs(folder: Path, row: list[int], temperature: float = 1.0) -> list[float]:
    """Logprobs of `row` by a plain transformers forward; the first is 0."""
    model = load_reference(folder, dtype=torch.float32, device=torch.device("cpu"))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1]
    picked = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(row[1:])[:, None])
    return [0.0, *picked[:, 0].tolist()]
