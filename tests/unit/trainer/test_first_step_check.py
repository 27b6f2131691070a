"""The first step's invariants, one broken at a time."""

import json
import math
from pathlib import Path

import pytest
from trainer_support import ScriptedBackend, batch_of

from areal_agent.errors import FirstStepError
from areal_agent.trainer.first_step import FirstStep

GOOD = {"loss": 0.1, "ratio": 1.0, "ratio_max": 1.0000004, "approx_kl": 1e-12}


def check(tmp_path: Path, logprob: float = -0.5) -> FirstStep:
    return FirstStep(ScriptedBackend(logprob=logprob), tmp_path / "first.json", tolerance=1e-2)


async def test_what_holds_is_told(tmp_path: Path) -> None:
    first = check(tmp_path)
    assert await first.check_batch(batch_of([0, 1])) == {"first_step/logprob_abs_max": 0}
    assert first.check_step({}) == {}
    assert not first.is_done  # nothing was trained on yet
    assert first.check_step(GOOD) == {
        "first_step/ratio": 1.0,
        "first_step/ratio_max": 1.0000004,
        "first_step/approx_kl": 1e-12,
    }
    assert first.is_done
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("logprob", [-0.52, float("nan")])
async def test_other_logprobs_end_the_run(tmp_path: Path, logprob: float) -> None:
    with pytest.raises(FirstStepError, match="differ from the captured ones by") as error:
        await check(tmp_path, logprob).check_batch(batch_of([0, 1]))
    assert error.value.path == str(tmp_path / "first.json")
    evidence = json.loads((tmp_path / "first.json").read_text(encoding="utf-8"))
    assert evidence["tolerance"] == 1e-2
    assert len(evidence["worst"]) == 6
    worst = evidence["worst"][0]
    assert worst["captured"] == -0.5
    assert worst["trainer"] == pytest.approx(logprob, nan_ok=True)
    assert worst["position"] >= 2
    assert worst["ids_before"][:2] == [1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ratio", 0.98),
        ("ratio", math.nan),
        ("ratio_max", 1.02),
        ("approx_kl", 1e-3),
        ("approx_kl", None),
    ],
)
def test_another_ratio_or_divergence_ends_the_run(
    tmp_path: Path, name: str, value: float | None
) -> None:
    said = GOOD | {name: value} if value is not None else {k: GOOD[k] for k in GOOD if k != name}
    with pytest.raises(FirstStepError, match=f"{name} was {value}"):
        check(tmp_path).check_step(said)
    evidence = json.loads((tmp_path / "first.json").read_text(encoding="utf-8"))
    assert evidence["metrics"].keys() == said.keys()
