"""Each agent of ``examples/agents`` trains two steps, unchanged, on tokens that it really got."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

AGENTS = Path(__file__).parents[2] / "examples" / "agents"
COMMAND = Path(sys.executable).with_name("areal-agent")
SMALL = [
    "total_train_steps=2",
    "rollout.consumer_batch_size=2",
    "rollout.max_concurrent_rollouts=16",
    "valid_dataset.args.n=4",
    "evaluator.greedy_after=false",
    "sample_dialogues=1",
]

pytestmark = pytest.mark.timeout(300)


def missing_packages(script: Path) -> list[str]:
    """What a script imports and nobody has installed."""
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    names = {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    names |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return sorted({top for name in names if find_spec(top := name.partition(".")[0]) is None})


@pytest.mark.parametrize("name", sorted(path.parent.name for path in AGENTS.glob("*/config.yaml")))
def test_an_agent_trains(name: str, tmp_path: Path) -> None:
    if missing := missing_packages(AGENTS / name / "agent.py"):
        pytest.skip(f"{', '.join(missing)} is not installed: see its README.md")
    argv = [COMMAND, "train", AGENTS / name / "config.yaml", f"fileroot={tmp_path}", *SMALL]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [folder] = tmp_path.glob("*/trial")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if "rollout/reward" in step]
    assert len(trained) == 2
    for step in trained:
        assert step["rollout/outcome/ok"] == 16
        assert step["rollout/prefix_hits"] > 0
        assert not any(step[name] for name in step if name.startswith("rollout/breaks"))
        assert step["rollout/undelivered"] == 0
        assert step.get("mismatch/current_abs_max", 0.0) < 1e-3
