"""Tokens a second of the embedded engine, beside `transformers.generate` and a plain loop.

    python tests/benchmarks/bench_engine.py [--concurrency 1 16 64 256] [--json]

All three run in one process, interleaved, on the same prompts (30-200 tokens) and reply lengths
(50-200 tokens) at temperature 1, each with logprobs; the median of the repeats counts. `generate`
runs static batches of at most 64 and its replies are cut to the wanted lengths; the loop runs one
request after the other, over a few of them. The ratios are the result, taken
from tokens per CPU-second, which others on the machine disturb less: absolute figures follow the
machine.
"""

import argparse
import asyncio
import inspect
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging as transformers_logging

from areal_agent.inference.engine.engine import Engine
from areal_agent.inference.engine.fallback import load_reference
from areal_agent.inference.engine.model import DenseModel
from areal_agent.inference.engine.request import GenerateRequest, SamplingParams

SIZES: dict[str, dict[str, int]] = {
    "1m": {
        "hidden_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "intermediate_size": 432,
        "vocab_size": 512,
    },
    "demo": {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 256,
        "vocab_size": 200,
    },
}
STATIC_BATCH = 64
LOOP_REQUESTS = 4


class Work:
    """Prompts and reply lengths of one burst."""

    def __init__(self, concurrency: int, vocab_size: int) -> None:
        random = np.random.default_rng(concurrency)
        self.prompts = [
            random.integers(vocab_size, size=n).tolist()
            for n in random.integers(30, 201, size=concurrency)
        ]
        self.lengths: list[int] = random.integers(50, 201, size=concurrency).tolist()


async def run_engine(model: DenseModel, work: Work, repeat: int) -> int:
    """Tokens of the engine, all requests at once."""
    engine = Engine(model, decode=str, max_running=256, max_model_len=512)
    async with engine:
        tickets = [
            engine.submit(
                GenerateRequest(str(i), prompt, SamplingParams(max_tokens=n, seed=repeat * 999 + i))
            )
            for i, (prompt, n) in enumerate(zip(work.prompts, work.lengths, strict=True))
        ]
        return sum([len((await ticket.result()).token_ids) for ticket in tickets])


@torch.inference_mode()
def run_generate(model: Any, work: Work) -> int:
    """Tokens of static batches, left-padded."""
    for a in range(0, len(work.prompts), STATIC_BATCH):
        prompts = work.prompts[a : a + STATIC_BATCH]
        longest = max(len(p) for p in prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        most = max(work.lengths[a : a + STATIC_BATCH])
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=most,
            min_new_tokens=most,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logprobs = torch.stack(out.logits, 1).log_softmax(-1)
        logprobs.gather(2, out.sequences[:, longest:, None])
    return sum(work.lengths)


@torch.inference_mode()
def run_loop(model: Any, work: Work) -> int:
    """Tokens of one request after the other, with the model's own cache."""
    chosen = list(zip(work.prompts, work.lengths, strict=True))[:LOOP_REQUESTS]
    known = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    for prompt, length in chosen:
        ids, cache = torch.tensor([prompt]), None
        for _ in range(length):
            out = model(input_ids=ids, use_cache=True, **{name: cache})
            logprobs = out.logits[:, -1].log_softmax(-1)
            ids, cache = torch.multinomial(logprobs.exp(), 1), getattr(out, name)
            logprobs.gather(1, ids).item()
    return sum(n for _, n in chosen)


def measure(folder: Path, concurrency: int, repeats: int) -> dict[str, float]:
    """Medians of each, and the ratios."""
    reference = load_reference(folder, dtype=torch.float32, device=torch.device("cpu"))
    dense = DenseModel.from_folder(
        folder, reference.config, dtype=torch.float32, device=torch.device("cpu")
    )
    work = Work(concurrency, reference.config.vocab_size)
    rounds = iter(range(10_000))
    contenders: dict[str, Callable[[], int]] = {
        "engine": lambda: asyncio.run(run_engine(dense, work, next(rounds))),
        "generate": lambda: run_generate(reference, work),
        "loop": lambda: run_loop(reference, work),
    }
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            started, started_cpu = time.perf_counter(), time.process_time()
            tokens = run()
            wall[name].append(tokens / (time.perf_counter() - started))
            cpu[name].append(tokens / (time.process_time() - started_cpu))
    median = {name: statistics.median(found) for name, found in cpu.items()}
    return {
        **{f"{name}_tokens_per_second": statistics.median(found) for name, found in wall.items()},
        **{f"{name}_tokens_per_cpu_second": rate for name, rate in median.items()},
        "over_generate": median["engine"] / median["generate"],
        "over_loop": median["engine"] / median["loop"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", choices=sorted(SIZES), default="1m")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = LlamaConfig(**SIZES[options.size], max_position_embeddings=512, pad_token_id=0)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for concurrency in options.concurrency:
            found = measure(Path(folder), concurrency, options.repeats)
            results[str(concurrency)] = found
            print(
                f"{concurrency:4d} requests: engine {found['engine_tokens_per_second']:.0f}, "
                f"generate {found['generate_tokens_per_second']:.0f}, "
                f"loop {found['loop_tokens_per_second']:.0f} tokens/s; "
                f"{found['over_generate']:.2f}x generate, {found['over_loop']:.2f}x loop"
            )
    if options.json:
        print(json.dumps({"benchmark": "engine", "size": options.size, "results": results}))


if __name__ == "__main__":
    main()
