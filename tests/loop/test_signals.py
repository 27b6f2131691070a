"""S33: whatever ends a run, nothing of it is left: no process, no port."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from loop_support import Driver, free_port, is_free, settings

pytestmark = pytest.mark.timeout(300)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
SECONDS = 10.0
"""All must be over by then."""


@contextmanager
def endless_runs(root: Path, model: Path) -> Iterator[list[tuple[Driver, int]]]:
    """A run for each signal, and the port of its server."""
    with ExitStack() as stack:
        runs: list[tuple[Driver, int]] = []
        for number in SIGNALS:
            port = free_port()
            folder = root / signal.Signals(number).name
            server = {"consumer_batch_size": 4, "server": {"port": port}}
            values = settings(folder, model, total_train_steps=100_000, rollout=server)
            runs.append((stack.enter_context(Driver(folder, values)), port))
        yield runs


def end_each(runs: list[tuple[Driver, int]], reach: Callable[[Driver], None]) -> None:
    """Send each run its signal once it has reached the moment; check what is left."""
    for (run, port), number in zip(runs, SIGNALS, strict=True):
        reach(run)
        processes = run.alive()
        assert len(processes) >= 2
        sent = time.monotonic()
        run.signal(number)
        code = run.wait(SECONDS)
        run.wait_gone(SECONDS - (time.monotonic() - sent))
        assert not any(process.is_running() for process in processes)
        assert code == EXIT_CODES[number], run.said()
        assert is_free(port)
        if number != signal.SIGKILL:
            assert run.stderr == "interrupted: cleaning up (once more to end at once)\n"
            assert "Traceback" not in run.stdout


def test_at_start_up(tmp_path: Path, model: Path) -> None:
    def starting(run: Driver) -> None:
        logs = run.folder / "logs"
        run.until(lambda: (logs / "server-0.log").exists() and (logs / "trainer.log").exists())
        assert not (logs / "server-0.json").exists()

    with endless_runs(tmp_path, model) as runs:
        end_each(runs, starting)


def test_in_the_middle_of_a_step(tmp_path: Path, model: Path) -> None:
    with endless_runs(tmp_path, model) as runs:
        end_each(runs, lambda run: run.until_step(2))


def test_during_a_weight_load(tmp_path: Path, heavy_model: Path) -> None:
    def loading(run: Driver) -> None:
        weights = run.folder / "weights"
        run.until(lambda: weights.is_dir() and bool(list(weights.glob("v0*"))))
        seen = len(list(weights.glob("v0*")))
        run.until(lambda: len(list(weights.glob("v0*"))) > seen, poll=0.001)

    with endless_runs(tmp_path, heavy_model) as runs:
        end_each(runs, loading)


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
