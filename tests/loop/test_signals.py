"""S33: whatever ends a run, nothing of it is left: no process, no port."""

import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from loop_support import Driver, free_port, is_free, metrics_of, settings

pytestmark = pytest.mark.timeout(300)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
SECONDS = 10.0
"""All must be over by then."""


def end_by_each_signal(root: Path, model: Path, reach: Callable[[Driver], None]) -> list[Driver]:
    """Start a run for each signal, and send it once the run has reached the moment."""

    def end(number: signal.Signals) -> Driver:
        port, folder = free_port(), root / number.name
        values = settings(
            folder,
            model,
            total_train_steps=100_000,
            rollout={"server": {"port": port}},
            actor={"optimizer": {"lr": 1e-7}},  # rewards keep differing, so weights keep coming
        )
        with Driver(folder, values) as run:
            reach(run)
            assert len(run.alive()) >= 2
            sent = time.monotonic()
            run.signal(number)
            code = run.wait(SECONDS)
            run.wait_gone(SECONDS - (time.monotonic() - sent))
            assert code == EXIT_CODES[number], run.said()
            assert is_free(port)
            if number != signal.SIGKILL:
                assert run.stderr == "interrupted: cleaning up (once more to end at once)\n"
        return run

    with ThreadPoolExecutor(len(SIGNALS)) as pool:
        return list(pool.map(end, SIGNALS))


def test_at_start_up(tmp_path: Path, model: Path) -> None:
    def starting(run: Driver) -> None:
        logs = run.folder / "logs"
        run.until(lambda: (logs / "server-0.log").exists() and (logs / "trainer.log").exists())
        assert not (logs / "server-0.json").exists()

    end_by_each_signal(tmp_path, model, starting)


def test_in_the_middle_of_a_step(tmp_path: Path, model: Path) -> None:
    end_by_each_signal(tmp_path, model, lambda run: run.until_step(2))


def test_during_a_weight_load(tmp_path: Path, heavy_model: Path) -> None:
    def loading(run: Driver) -> None:
        run.until_step(1)
        seen = newest_version(run)
        run.until(lambda: newest_version(run) > seen, poll=0.001)

    for run in end_by_each_signal(tmp_path, heavy_model, loading):
        published = [int(step["publish/version"]) for step in metrics_of(run.folder)]
        assert published == list(range(1, newest_version(run)))


def newest_version(run: Driver) -> int:
    """Of the weights that were written for the server, loaded or not."""
    names = [path.name for path in (run.folder / "weights").iterdir()]
    return max(int(name[1:]) for name in names if re.fullmatch(r"v\d{6}", name))


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, model: Path) -> None:
    with Driver(tmp_path, settings(tmp_path, model, total_train_steps=100_000)) as run:
        run.until_step(1)
        server = run.server()
        server.suspend()  # so that cleaning up takes its time
        run.signal(signal.SIGINT)
        run.until(lambda: "interrupted" in run.stderr)
        sent = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait(SECONDS) == 130
        assert time.monotonic() - sent < 2.0
        with suppress(psutil.NoSuchProcess):
            server.resume()
        run.wait_gone(SECONDS)
