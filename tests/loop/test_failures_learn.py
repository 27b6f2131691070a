"""What the example learns while a fifth of its episodes fails: as much as if none did."""

from pathlib import Path

import pytest

from tests.loop.failures import KINDS, compare, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

SEEDS = (1, 2, 3)
NOISE = 0.03
"""Areas of two clean runs differ by some 0.02."""


def test_typed_failures_do_not_change_the_curve(tmp_path: Path) -> None:
    runs = [train(tmp_path, kind, seed, share=0.2) for seed in SEEDS for kind in KINDS]
    for kind in KINDS[1:]:
        gap, error = compare(runs, kind)
        print(f"{kind}: area {gap:.4f} below clean, standard error {error:.4f}")
    gap, _ = compare(runs, "typed")
    assert abs(gap) <= NOISE
    assert all(run["failed"] > 1000 for run in runs if run["kind"] == "typed")
    assert all(run["after"] >= 0.88 for run in runs if run["kind"] == "typed")
