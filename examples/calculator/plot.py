"""Draw the curve of one or more runs: reward and held-out accuracy against steps and seconds.

python examples/calculator/plot.py runs/calculator/trial/metrics.jsonl -o curve.png

Several files are drawn over each other, such as the runs of several seeds. It needs matplotlib
and no display. `summary.json` beside a file adds the accuracy before and after training.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

REWARD, ACCURACY = "rollout/reward", "eval/reward"
REWARD_COLOUR, ACCURACY_COLOUR = "#8a8f98", "#0b6e4f"


@dataclass(frozen=True)
class Curve:
    """One run: points as (step, seconds, value)."""

    reward: list[tuple[int, float, float]]
    accuracy: list[tuple[int, float, float]]


def read_curve(metrics: Path) -> Curve:
    """Read a run. Seconds count from the start of the first step.

    Raises:
        SystemExit: the file has no steps.
    """
    lines = metrics.read_text(encoding="utf-8").splitlines()
    steps: list[dict[str, Any]] = [json.loads(line) for line in lines]
    if not steps:
        raise SystemExit(f"{metrics} has no steps: expected the metrics.jsonl of a run")
    start = steps[0]["time"] - steps[0]["timeperf/step"] - steps[0].get("timeperf/eval", 0.0)

    def points(key: str) -> list[tuple[int, float, float]]:
        found = [step for step in steps if step.get(key) is not None]
        return [(step["global_step"] + 1, step["time"] - start, step[key]) for step in found]

    accuracy = points(ACCURACY)
    summary_file = metrics.with_name("summary.json")
    if summary_file.is_file():
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
        if summary["eval_before"] is not None:
            accuracy.insert(0, (0, 0.0, summary["eval_before"]))
        if summary["eval_after"] is not None:
            end = steps[-1]["time"] - start
            accuracy.append((steps[-1]["global_step"] + 1, end, summary["eval_after"]))
    return Curve(points(REWARD), accuracy)


def draw(curves: list[Curve], output: Path) -> None:
    """Write the picture: the same curves over steps and over seconds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for axis, column, label in ((axes[0], 0, "step"), (axes[1], 1, "seconds")):
        for curve in curves:
            _line(axis, curve.reward, column, REWARD_COLOUR, "reward of the batch", "")
            _line(axis, curve.accuracy, column, ACCURACY_COLOUR, "held-out accuracy", "o")
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), frameon=False, loc="outside upper left", ncols=2)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)


def _line(
    axis: Axes,
    points: list[tuple[int, float, float]],
    column: int,
    colour: str,
    label: str,
    marker: str,
) -> None:
    x, y = [point[column] for point in points], [point[2] for point in points]
    width, size = (2, 4) if marker else (1, 0)
    axis.plot(x, y, color=colour, label=label, marker=marker, markersize=size, linewidth=width)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("metrics", type=Path, nargs="+", help="metrics.jsonl of a run")
    parser.add_argument("-o", "--output", type=Path, default=Path("curve.png"), help="PNG or SVG")
    args = parser.parse_args()
    draw([read_curve(path) for path in args.metrics], args.output)
    print(args.output)


if __name__ == "__main__":
    main()
