"""What the example learns: over seeds, over staleness, and from a starting point made anew."""

import subprocess
import sys
from pathlib import Path

import pytest
from curves import CONFIG, DEFAULT_ETA, RECOMMENDED, Result, at, mean, table, train, train_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

SEEDS = (1, 2, 3)
STALE = [eta for eta in RECOMMENDED if eta > 0]
NOISE = 0.06
"""Two means over three seeds, each run within some 0.03 of the next, are rarely further apart."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    found = train_all(tmp_path_factory.mktemp("curves"), seeds=SEEDS, etas=RECOMMENDED)
    print(table(found))
    return found


def test_the_example_reaches_its_accuracy(results: list[Result]) -> None:
    runs = at(results, DEFAULT_ETA)
    assert 0.15 <= mean(runs, "eval_before") <= 0.25
    assert mean(runs, "eval_after") >= 0.88
    assert min(run["eval_after"] for run in runs) >= 0.83
    assert mean(runs, "eval_after_greedy") >= 0.93


@pytest.mark.parametrize("eta", RECOMMENDED)
def test_each_staleness_learns_at_its_recommended_settings(results: list[Result], eta: int) -> None:
    runs = at(results, eta)
    assert mean(runs, "eval_after") >= 0.85
    assert max(run["staleness_max"] for run in runs) <= eta


@pytest.mark.parametrize("eta", STALE)
def test_training_overlaps_with_generation(results: list[Result], eta: int) -> None:
    runs = at(results, eta)
    assert mean(runs, "overlap_share") >= 0.95 * mean(runs, "overlap_possible")
    assert min(run["versions_spanned_max"] for run in runs) > 1


def test_a_starting_point_made_anew_is_as_good(results: list[Result], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    script = CONFIG.parent / "make_model.py"
    subprocess.run([sys.executable, str(script), str(folder), "--seed", "101"], check=True)
    anew = [
        train(tmp_path, eta=DEFAULT_ETA, seed=seed, overrides=[f"model={folder}"]) for seed in SEEDS
    ]
    print(table(anew))
    shipped = at(results, DEFAULT_ETA)
    assert abs(mean(anew, "eval_after") - mean(shipped, "eval_after")) <= NOISE
    assert min(run["eval_after"] for run in anew) >= 0.83
