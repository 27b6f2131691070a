"""metrics.jsonl: every step once, also after a crash (S30)."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from areal_agent.stats.logger import StatsLogger


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_a_step_on_the_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    async with StatsLogger(path) as stats:
        await stats.commit(0, 0, 0, {"reward": 0.25, "eval": None})
        assert len(rows(path)) == 1
        await stats.commit(0, 1, 1, {"reward": math.nan, "up": math.inf, "n": 3})
        await stats.commit(1, 0, 2, {"reward": 1.0})
    got = rows(path)
    assert [(r["epoch"], r["step"], r["global_step"]) for r in got] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
    ]
    assert got[0]["reward"] == 0.25
    assert got[0]["eval"] is None
    assert got[1]["reward"] is None
    assert got[1]["up"] is None
    assert got[1]["n"] == 3
    assert got[0]["time"] <= got[2]["time"]


async def test_a_resumed_run_has_every_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    async def crash() -> None:
        async with StatsLogger(path) as stats:
            for step in range(3):
                await stats.commit(0, step, step, {"reward": step / 10})
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash()
    async with StatsLogger(path) as stats:
        assert stats.last_step == 2
        for step in (1, 2, 3, 4):
            await stats.commit(0, step, step, {"reward": 9.0})
    assert [(r["global_step"], r["reward"]) for r in rows(path)] == [
        (0, 0.0),
        (1, 0.1),
        (2, 0.2),
        (3, 9.0),
        (4, 9.0),
    ]


async def test_a_line_that_was_cut_short_is_removed_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    async with StatsLogger(path) as stats:
        await stats.commit(0, 0, 0, {"reward": 0.5})
    with path.open("a") as file:
        file.write('{"epoch": 0, "global_st')
    async with StatsLogger(path) as stats:
        assert stats.last_step == 0
        await stats.commit(0, 1, 1, {"reward": 0.75})
    assert [r["reward"] for r in rows(path)] == [0.5, 0.75]


async def test_a_step_committed_twice_or_a_reserved_name_is_refused(tmp_path: Path) -> None:
    async with StatsLogger(tmp_path / "metrics.jsonl") as stats:
        await stats.commit(0, 0, 0, {})
        with pytest.raises(ValueError, match="global_step above 0, got 0"):
            await stats.commit(0, 0, 0, {})
        with pytest.raises(ValueError, match="got \\['time'\\]"):
            await stats.commit(0, 1, 1, {"time": 3.0})
    assert len(rows(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    stats = StatsLogger(Path("/dev/full"))
    stats._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
    await stats.commit(0, 0, 0, {"reward": 1.0})
    await stats.commit(0, 1, 1, {"reward": 2.0})
    pending = [json.loads(line)["reward"] for line in stats._pending.splitlines()]
    assert pending == [1.0, 2.0]  # tried again with each step
    await stats.__aexit__(None, None, None)
    assert "could not be written" in caplog.text
