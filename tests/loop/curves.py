"""Train the example for several seeds at several degrees of staleness, and tabulate the results.

    python -m tests.loop.curves --seeds 1 2 3 --eta 0 1 2 4 --json

Runs go one after the other, as times are part of the table. ``--set`` overrides settings of every
run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parent.parent.parent / "examples" / "calculator" / "config.yaml"
COMMAND = Path(sys.executable).with_name("areal-agent")

RECOMMENDED: Mapping[int, tuple[str, ...]] = {
    0: (),
    1: (),
    2: (),
    4: ("actor.optimizer.lr=1e-4",),
}
"""Overrides that docs/staleness.md recommends for the example at each max_head_offpolicyness."""

DEFAULT_ETA = 1
"""What the example's own settings say."""

COLUMNS = (
    "eta",
    "seed",
    "eval_before",
    "eval_after",
    "eval_after_greedy",
    "steps",
    "train_seconds",
    "overlap_share",
    "overlap_possible",
    "versions_spanned_max",
    "staleness_max",
)

Result = dict[str, Any]
"""The columns of one run."""


def train(root: Path, *, eta: int, seed: int, overrides: Sequence[str] = ()) -> Result:
    """Run one training below `root`; its row."""
    argv = [
        str(COMMAND),
        "train",
        str(CONFIG),
        f"fileroot={root}",
        f"experiment_name=eta-{eta}-seed-{seed}",
        f"seed={seed}",
        f"rollout.max_head_offpolicyness={eta}",
        *overrides,
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")
    summary = json.loads(done.stdout.splitlines()[-1])
    return {"eta": eta, **{name: summary[name] for name in COLUMNS[1:]}}


def train_all(
    root: Path, *, seeds: Iterable[int], etas: Iterable[int], overrides: Sequence[str] = ()
) -> list[Result]:
    """Run every seed at every staleness, each as recommended; `overrides` come last."""
    seeds = list(seeds)
    results: list[Result] = []
    for eta in etas:
        for seed in seeds:
            chosen = (*RECOMMENDED[eta], *overrides)
            results.append(train(root, eta=eta, seed=seed, overrides=chosen))
            print(row(results[-1]), file=sys.stderr, flush=True)
    return results


def mean(results: Iterable[Result], name: str) -> float:
    values = [float(result[name]) for result in results]
    return sum(values) / len(values)


def at(results: Iterable[Result], eta: int) -> list[Result]:
    return [result for result in results if result["eta"] == eta]


def row(result: Mapping[str, Any]) -> str:
    return "  ".join(f"{_text(result.get(name)):>{max(len(name), 6)}}" for name in COLUMNS)


def table(results: Sequence[Result]) -> str:
    """One line a run, then the means at each staleness."""
    lines = ["  ".join(f"{name:>6}" for name in COLUMNS), *(row(result) for result in results)]
    measured = [name for name in COLUMNS[2:] if all(r[name] is not None for r in results)]
    for eta in sorted({result["eta"] for result in results}):
        means = {name: mean(at(results, eta), name) for name in measured}
        lines.append(row({"eta": eta, "seed": "mean", **means}))
    return "\n".join(lines)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--eta", type=int, nargs="+", default=[DEFAULT_ETA], choices=sorted(RECOMMENDED)
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting"
    )
    parser.add_argument("--root", type=Path, help="keep the run folders here")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = train_all(
            args.root or Path(folder), seeds=args.seeds, etas=args.eta, overrides=args.set
        )
    print(table(results))
    if args.json:
        print(json.dumps({"runs": results}))


if __name__ == "__main__":
    main()
