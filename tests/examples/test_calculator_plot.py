"""The picture of the curve: what is read from a run, and that something is drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_agent.registry import load_script

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
plot: Any = load_script(EXAMPLE / "plot.py")


def step(number: int, time: float, **metrics: float) -> str:
    row = {"global_step": number, "time": time, "timeperf/step": 4.0, **metrics}
    return json.dumps(row) + "\n"


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    rows = [
        step(0, 104.0, **{"rollout/reward": 0.2}),
        step(1, 110.0, **{"rollout/reward": 0.5, "eval/reward": 0.4, "timeperf/eval": 2.0}),
    ]
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_seconds_count_from_the_first_step(metrics: Path) -> None:
    curve = plot.read_curve(metrics)
    assert curve.reward == [(1, 4.0, 0.2), (2, 10.0, 0.5)]
    assert curve.accuracy == [(2, 10.0, 0.4)]


def test_the_summary_adds_both_ends(metrics: Path) -> None:
    summary = {"eval_before": 0.1, "eval_after": 0.9}
    metrics.with_name("summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert plot.read_curve(metrics).accuracy == [(0, 0.0, 0.1), (2, 10.0, 0.4), (2, 10.0, 0.9)]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    with pytest.raises(SystemExit, match="has no steps"):
        plot.read_curve(path)


def test_a_picture_is_written(metrics: Path, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "curve.png"
    plot.draw([plot.read_curve(metrics), plot.read_curve(metrics)], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
