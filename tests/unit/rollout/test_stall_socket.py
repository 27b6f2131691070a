"""A running job says what it waits for, also while it is blocked; one that is gone says so."""

import asyncio
import json
import platform
import socket
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rollout_support import executor, settle
from test_supervisor import hangs
from typer.testing import CliRunner

from areal_agent.cli import app
from areal_agent.config.supervisor import SupervisorConfig
from areal_agent.errors import ArealAgentError, ConfigError
from areal_agent.rollout.stall_socket import LIVE_FILE, REPORT_FILE, ask
from areal_agent.trainer.folder import RunFolder
from areal_agent.trainer.supervised import supervised


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.settings.touch()
    return folder


def stall(folder: RunFolder, *options: str):
    """What the command prints, and what it raises."""
    return CliRunner().invoke(app, ["stall", str(folder.root), *options])


@asynccontextmanager
async def running(folder: RunFolder):
    config = SupervisorConfig(block_seconds=0.1)
    async with supervised(config, folder) as supervision, executor(hangs(times=99)):  # noqa: SIM117
        async with supervision.waits.until("rollouts", "batch 0"):
            await settle()
            yield supervision


async def test_a_running_job_is_asked(folder: RunFolder):
    async with asyncio.timeout(20), running(folder) as supervision:
        supervision.supervisor.parts["inference servers"] = lambda: ["http://somewhere: up"]
        said = await asyncio.to_thread(stall, folder)
        assert said.exit_code == 0
        assert "asked from outside" in said.stdout
        assert "rollouts: batch 0, for " in said.stdout
        assert "for the tool search" in said.stdout
        assert "http://somewhere: up" in said.stdout
        told = json.loads((await asyncio.to_thread(stall, folder, "--json")).stdout)
        assert {one["doing"] for one in told["episodes"]} == {"the tool search"}
        live = json.loads((folder.root / LIVE_FILE).read_text())
        assert (folder.root / LIVE_FILE).stat().st_mode & 0o777 == 0o600
        assert Path(live["socket"]).stat().st_mode & 0o777 == 0o600
        assert Path(live["socket"]).parent.stat().st_mode & 0o777 == 0o700
    assert not (folder.root / LIVE_FILE).exists()
    assert not Path(live["socket"]).parent.exists()
    assert not folder.stall.exists()  # nobody wrote a report: the run does not stall


async def test_a_job_whose_loop_is_blocked_is_asked(folder: RunFolder):
    answers = []
    async with asyncio.timeout(20), running(folder):
        asker = threading.Thread(target=lambda: (time.sleep(0.3), answers.append(ask(folder.root))))
        asker.start()
        time.sleep(0.6)  # noqa: ASYNC251 - the loop stands while it is asked
        asker.join()
    report = answers[0].report
    assert report is not None
    assert report.loop_seconds > 0.1
    assert "time.sleep(0.6)" in report.loop[-1]
    assert "the event loop has been blocked for 0." in "\n".join(report.lines())


async def test_a_job_that_starts_or_closes_is_asked(folder: RunFolder):
    async with asyncio.timeout(20), supervised(SupervisorConfig(), folder) as supervision:
        async with supervision.waits.until("servers and trainer", "their start", 360.0):
            assert (
                "servers and trainer: their start, for "
                in (await asyncio.to_thread(stall, folder)).stdout
            )
        supervision.attend({"trainer": lambda: ["process 7 runs"]})
        supervision.closing()
        said = (await asyncio.to_thread(stall, folder)).stdout
        assert "what was started: its end, for " in said
        assert "process 7 runs" in said


async def test_a_job_that_is_over_shows_what_it_said_last(folder: RunFolder):
    async with asyncio.timeout(20), running(folder) as supervision:
        supervision.supervisor.tell("the run makes no progress")
    said = stall(folder)
    assert "the run makes no progress" in said.stdout
    assert isinstance(said.exception, ArealAgentError)
    assert str(said.exception) == (
        f"the run in {folder.root} is not running, or is still starting; this is the last it "
        "reported"
    )
    assert said.exception.exit_code == 1


def test_a_job_that_was_killed_leaves_stale_files(folder: RunFolder, tmp_path_factory):
    with socket.socket(socket.AF_UNIX) as dead:
        path = tmp_path_factory.mktemp("s") / "stall"
        dead.bind(str(path))
    for where in (str(path), str(path) + "-gone"):
        live = {"pid": 4_000_000, "host": platform.node(), "socket": where}
        (folder.root / LIVE_FILE).write_text(json.dumps(live))
        answer = ask(folder.root)
        assert answer.report is None
        assert answer.not_running.endswith("is not running: its process 4000000 is gone")
    live["host"] = "another-machine"
    (folder.root / LIVE_FILE).write_text(json.dumps(live))
    assert ask(folder.root).not_running.endswith("is process 4000000 on another-machine: ask there")
    (folder.root / LIVE_FILE).write_text("{")
    (folder.root / REPORT_FILE).write_text('{"something": "else"}')
    answer = ask(folder.root)
    assert answer.report is None
    assert "cannot be read" in answer.not_running


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        ask(tmp_path)
