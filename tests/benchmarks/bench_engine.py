"""Tokens a second of the embedded engine, beside `transformers.generate` and a plain loop.

    python tests/benchmarks/bench_engine.py [--concurrency 1 16 64 256] [--vllm] [--json]

All run in one process, interleaved, on the same prompts (30-200 tokens) and reply lengths
(50-200 tokens) at temperature 1, each with logprobs; the median of the repeats counts. `generate`
runs static batches of at most 64 and its replies are cut to the wanted lengths; the loop runs one
request after the other, over a few of them. The ratios are the result, taken
from tokens per CPU-second, which others on the machine disturb less: absolute figures follow the
machine. `--vllm` adds vLLM (its CPU build, where it is installed) in the same process, eager and
without HTTP.
"""

import argparse
import asyncio
import inspect
import json
import os
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


def open_vllm(folder: Path) -> Any:
    """vLLM's engine in this process and on one core, with the same bounds as ours."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    return LLM(
        str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=256,
        disable_log_stats=True,
    )


def run_vllm(llm: Any, work: Work) -> int:
    """Tokens of vLLM, all requests at once; seeds of requests break its CPU build (0.32.0)."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    params = [
        SamplingParams(max_tokens=n, ignore_eos=True, logprobs=0, detokenize=False)
        for n in work.lengths
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in work.prompts]
    found = llm.generate(prompts, params, use_tqdm=False)
    return sum(len(one.outputs[0].token_ids) for one in found)


def measure(folder: Path, concurrency: int, repeats: int, vllm: Any) -> dict[str, float]:
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
    if vllm is not None:
        contenders["vllm"] = lambda: run_vllm(vllm, work)
        run_vllm(vllm, Work(1, reference.config.vocab_size))  # what it makes at its first call
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
        **{f"over_{n}": median["engine"] / rate for n, rate in median.items() if n != "engine"},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action="store_true", help="beside vLLM, which must be installed")
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
        vllm = open_vllm(Path(folder)) if options.vllm else None
        others = ("generate", "loop", *(("vllm",) if options.vllm else ()))
        for concurrency in options.concurrency:
            found = measure(Path(folder), concurrency, options.repeats, vllm)
            results[str(concurrency)] = found
            speeds = ", ".join(
                f"{name} {found[f'{name}_tokens_per_second']:.0f}" for name in ("engine", *others)
            )
            ratios = ", ".join(f"{found[f'over_{name}']:.2f}x {name}" for name in others)
            print(f"{concurrency:4d} requests: {speeds} tokens/s; {ratios}")
    if options.json:
        print(json.dumps({"benchmark": "engine", "size": options.size, "results": results}))


if __name__ == "__main__":
    main()
