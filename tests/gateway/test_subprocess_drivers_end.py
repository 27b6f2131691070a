"""However a run ends, no process of its agents is left, nor what they had started."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_support import alive

DRIVER = Path(__file__).with_name("agent_driver.py")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    driver = subprocess.Popen(
        [sys.executable, str(DRIVER), str(tmp_path)], stderr=subprocess.DEVNULL
    )
    with driver:
        wait_until(lambda: pids.exists() and len(alive(pids)) == 2)
        driver.send_signal(number)
        assert driver.wait(20) != 0
    wait_until(lambda: not alive(pids))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
