"""Agents that were not written for training get better by it: two examples, whole runs."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).parents[2] / "examples" / "agents"
COMMAND = Path(sys.executable).with_name("areal-agent")

SHOWN = (
    "eval_before",
    "eval_after",
    "eval_after_greedy",
    "eval_problems",
    "steps",
    "train_seconds",
)
MARGIN = 0.3
"""The starting point solves a fifth; 60 steps bring it to nine tenths. Half of them do for this."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def train(name: str, root: Path) -> dict[str, Any]:
    """Train an example for half of its steps; what its summary says."""
    argv: list[str | Path] = [COMMAND, "train", AGENTS / name / "config.yaml", "--json"]
    argv += [f"fileroot={root}", "total_train_steps=30", "evaluator.freq_steps=null"]
    argv += ["evaluator.n_problems_final=256"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    def row(name: str, values: Sequence[object]) -> str:
        texts = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in values]
        pairs = zip(texts, SHOWN, strict=True)
        return "  ".join([f"{name:>16}", *(f"{text:>{len(title)}}" for text, title in pairs)])

    rows = [row(name, [found[title] for title in SHOWN]) for name, found in results.items()]
    return "\n".join([row("agent", SHOWN), *rows])


def test_agents_learn(tmp_path: Path) -> None:
    results = {name: train(name, tmp_path) for name in ("openai_sdk", "anthropic_sdk")}
    print(f"\n{table(results)}")
    for name, found in results.items():
        assert found["eval_after"] >= found["eval_before"] + MARGIN, name
        assert found["eval_after_greedy"] >= found["eval_before"] + MARGIN, name
