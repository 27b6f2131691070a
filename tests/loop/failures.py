"""Train the example while a share of its episodes fails, and compare what it learns.

    python -m tests.loop.failures --seeds 1 2 3 --json --plot docs/_static/failures.png

Three kinds of run: nothing fails (``clean``), a share fails and is a typed failure (``typed``), the
same share becomes a reward of 0 (``zero``). The area under a run's held-out curve, from the start
to the last step, is its score; differences are between runs of the same seed.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.loop.curves import COMMAND, CONFIG

KINDS = ("clean", "typed", "zero")
TASK = Path(__file__).with_name("failing_task.py")

Run = dict[str, Any]
"""kind, seed, area, after, curve: [(step, accuracy)], failed: episodes that ended as failures."""


def train(root: Path, kind: str, seed: int, *, share: float, overrides: Sequence[str] = ()) -> Run:
    """Run one training below `root`."""
    failing = [
        f"workflow.use={TASK}:FailingToolAgent",
        f"workflow.args.share={share}",
        f"workflow.args.failed={kind}",
    ]
    argv = [
        str(COMMAND),
        "train",
        str(CONFIG),
        f"fileroot={root}",
        f"experiment_name={kind}-{seed}",
        f"seed={seed}",
        "evaluator.freq_steps=5",
        "evaluator.n_problems=256",
        *(failing if kind != "clean" else ()),
        *overrides,
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")
    summary = json.loads(done.stdout.splitlines()[-1])
    metrics = Path(summary["run_folder"]) / "metrics.jsonl"
    steps = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    curve = [(0, summary["eval_before"])]
    curve += [
        (step["global_step"] + 1, step["eval/reward"]) for step in steps if "eval/reward" in step
    ]
    return {
        "kind": kind,
        "seed": seed,
        "area": area(curve),
        "after": summary["eval_after"],
        "failed": sum(step["rollout/outcome/inference_error"] for step in steps),
        "curve": curve,
    }


def area(curve: Sequence[tuple[float, float]]) -> float:
    """Mean height of the line through the points."""
    pieces = pairwise(curve)
    return sum((b - a) * (y + z) / 2 for (a, y), (b, z) in pieces) / (curve[-1][0] - curve[0][0])


def compare(runs: Sequence[Run], kind: str) -> tuple[float, float]:
    """How far `kind` falls short of clean runs of the same seeds: mean, standard error."""
    areas = {(run["kind"], run["seed"]): run["area"] for run in runs}
    gaps = [areas["clean", seed] - areas[kind, seed] for k, seed in areas if k == kind]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / max(len(gaps) - 1, 1))
    return mean, spread / math.sqrt(len(gaps))


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draw the curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    colours = {"clean": "tab:blue", "typed": "tab:green", "zero": "tab:red"}
    for run in runs:
        label = run["kind"] if run["seed"] == runs[0]["seed"] else None
        axes.plot(*zip(*run["curve"], strict=True), color=colours[run["kind"]], label=label, lw=1)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out accuracy")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--share", type=float, default=0.2, help="of episodes that fail")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curves")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for kind in KINDS:
                run = train(Path(folder), kind, seed, share=args.share, overrides=args.set)
                runs.append(run)
                told = f"{kind:>6} seed {seed}: area {run['area']:.4f}, after {run['after']:.3f}"
                print(told, f"failed {run['failed']:.0f}", file=sys.stderr, flush=True)
    gaps = {kind: compare(runs, kind) for kind in KINDS[1:]}
    for kind, (mean, error) in gaps.items():
        print(f"{kind}: area {mean:.4f} below clean, standard error {error:.4f}")
    if args.plot:
        plot(runs, args.plot)
    if args.json:
        print(json.dumps({"runs": runs, "gaps": gaps}))


if __name__ == "__main__":
    main()
