"""A child ends with its parent, whatever it is doing and whatever ended the parent."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import gone

from areal_agent.lifeline import LIFELINE_ENV, ORPHAN_EXIT_CODE, Lifeline, watch_parent

DRIVER = Path(__file__).with_name("driver.py")

CHILD = """
import signal, sys, time
{before}
from areal_agent.lifeline import watch_parent
watch_parent(grace_seconds=0.2)
{after}
print("up", flush=True)
time.sleep(600)
"""

PARENT = """
import subprocess, sys, time
from areal_agent.lifeline import Lifeline
with Lifeline() as line:
    child = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1]], env=line.env, pass_fds=line.pass_fds
    )
    line.child_started()
    print("pid", child.pid, flush=True)
    time.sleep(600)
"""


def start_child(line: Lifeline, *, before: str = "", after: str = "") -> subprocess.Popen:
    program = CHILD.format(before=before, after=after)
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **line.env},
        pass_fds=line.pass_fds,
        stdout=subprocess.PIPE,
    )
    line.child_started()
    return child


def test_end_of_file_sends_sigterm() -> None:
    with Lifeline() as line:
        child = start_child(line)
        assert child.stdout.readline() == b"up\n"
    with child:
        assert child.wait(10) == -signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_ended_after_the_grace() -> None:
    with Lifeline() as line:
        child = start_child(line, after="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        assert child.stdout.readline() == b"up\n"
    with child:
        assert child.wait(10) == ORPHAN_EXIT_CODE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "print('up', flush=True)"),
        ("", "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"),
        ("print('up', flush=True); time.sleep(0.5)", ""),
    ],
    ids=["running", "ignores SIGTERM", "still starting"],
)
def test_sigkill_of_the_parent_ends_the_child(before: str, after: str) -> None:
    program = CHILD.format(before=before, after=after)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, program], stdout=subprocess.PIPE, text=True
    ) as parent:
        lines = [parent.stdout.readline() for _ in range(2)]  # in either order
        pid = next(int(line.split()[1]) for line in lines if line.startswith("pid"))
        assert "up\n" in lines
        parent.kill()
        assert gone(pid)


def test_the_lifeline_is_not_handed_on_and_without_one_nothing_is_watched() -> None:
    program = (
        "import os; from areal_agent.lifeline import watch_parent\n"
        f"print(watch_parent(), {LIFELINE_ENV!r} in os.environ, watch_parent())"
    )
    with Lifeline() as line:
        out = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **line.env},
            pass_fds=line.pass_fds,
            capture_output=True,
            text=True,
            check=True,
        )
    assert out.stdout == "True False False\n"
    assert watch_parent() is False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_end_with_their_driver_and_free_their_ports(number: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(DRIVER), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        pairs = [pair.split(":") for pair in driver.stdout.readline().split()]
        assert len(pairs) == 2
        driver.send_signal(number)
        assert driver.wait(10) != 0
        for pid, port in pairs:
            assert gone(int(pid))
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", int(port)))
