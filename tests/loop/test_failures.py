"""What goes wrong ends with a message that names it and a code that is not 0; nothing hangs."""

import asyncio
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from loop_support import TASK, Driver, metrics_of, settings, write_settings

from areal_agent import open_run
from areal_agent.errors import LaunchError
from areal_agent.rollout.stall_socket import ask
from areal_agent.trainer.run import Run

pytestmark = pytest.mark.timeout(300)

NO_RESTARTS = {"server": {"max_restarts": 0}}
SECONDS = 10.0
"""From the death of a process of ours to the end of the run."""


def test_a_typo_is_named_before_anything_starts(tmp_path: Path, model: Path) -> None:
    values = settings(tmp_path, model, rollout={"max_head_offpolicynes": 2})
    with Driver(tmp_path, values) as run:
        assert run.wait() == 2
        assert "rollout.max_head_offpolicynes" in run.stderr
        assert "did you mean 'rollout.max_head_offpolicyness'?" in run.stderr
        assert str(tmp_path / "config.yaml") in run.stderr
        assert "Traceback" not in run.stderr
        assert not (tmp_path / "runs").exists()


def test_a_missing_model_is_named_before_anything_starts(tmp_path: Path) -> None:
    with Driver(tmp_path, settings(tmp_path, tmp_path / "no-model")) as run:
        assert run.wait() == 2
        assert str(tmp_path / "no-model") in run.stderr
        assert "does not exist" in run.stderr
        assert "Traceback" not in run.stderr
        assert not (tmp_path / "runs").exists()


def test_an_occupied_port_is_named(tmp_path: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        values = settings(tmp_path, model, rollout={"server": {"port": port}})
        with Driver(tmp_path, values) as run:
            assert run.wait() == 1
            run.wait_gone(SECONDS)
            assert f"port {port} on 127.0.0.1 is in use by another process" in run.stderr
            assert "Traceback" not in run.stderr


def test_a_workflow_that_always_raises_ends_the_run_with_its_cause(
    tmp_path: Path, model: Path
) -> None:
    values = settings(tmp_path, model, workflow={"use": f"{TASK}:Failing"}, total_train_steps=50)
    with Driver(tmp_path, values) as run:
        assert run.wait() == 3
        run.wait_gone(SECONDS)
        message = run.stderr[run.stderr.index("\nerror: ") :]
        assert "episodes in a row failed (rollout.max_consecutive_failures 64)" in message
        cause = "workflow_error: ZeroDivisionError: the workflow divides by nothing"
        assert re.search(rf"the commonest cause, \d+ times: {cause}\n", message)
        assert "loop_task.py" in message  # where to look


def test_a_workflow_that_hangs_ends_the_run_with_a_report(tmp_path: Path, model: Path) -> None:
    """S14: what blocks is named, what hangs is told to who asks, then the run ends."""
    times = {"block_seconds": 0.5, "report_seconds": 3.0, "cancel_seconds": 3.0, "end_seconds": 8.0}
    values = settings(
        tmp_path, model, workflow={"use": f"{TASK}:Hangs"}, rollout={"supervisor": times}
    )
    with Driver(tmp_path, values) as run:
        told = run.folder / "stall.json"  # also of a start that takes long
        run.until(lambda: told.is_file() and "never_answers" in told.read_text("utf-8"))
        asked = ask(run.folder).report
        assert asked is not None
        assert asked.waits[0]["name"] == "batch 0"
        assert asked.n_episodes > 0
        assert "Hangs.somebody_who_never_answers" in asked.episodes[0]["place"]
        assert asked.parts.keys() >= {"inference servers", "trainer", "reward workers", "rollouts"}
        assert run.wait() == 4
        run.wait_gone(SECONDS)
        blocks = (
            r"has been blocked for \S+ s by Hangs.arun_episode \(.*loop_task.py:\d+: time.sleep"
        )
        assert re.search(blocks, run.stderr)
        assert "error: the run made no progress for 8 s" in run.stderr
        assert f"the report is in {run.folder / 'stall.json'}" in run.stderr
        last = ask(run.folder)
        assert "is not running" in last.not_running
        assert last.report is not None
        cancelled, given_up = last.report.actions
        assert "were cancelled, to be run again" in cancelled
        assert "were given up" in given_up


@pytest.mark.parametrize("who", ["inference server-0", "the trainer's worker"])
def test_a_process_that_is_killed_ends_the_run_and_is_named(
    who: str, tmp_path: Path, model: Path
) -> None:
    values = settings(tmp_path, model, total_train_steps=100_000, rollout=NO_RESTARTS)
    with Driver(tmp_path, values) as run:
        run.until_step(2)
        victim = run.server() if who == "inference server-0" else run.worker()
        killed = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        assert run.wait(SECONDS) == 1
        run.wait_gone(SECONDS - (time.monotonic() - killed))
        assert f"error: {who} (process {victim.pid}) was ended by SIGKILL" in run.stderr
        assert "Traceback" not in run.stderr


async def test_a_call_that_fails_is_blamed_on_the_server_that_died(
    tmp_path: Path, model: Path
) -> None:
    async def lose_a_server() -> None:
        values = settings(tmp_path, model, rollout=NO_RESTARTS)
        async with open_run(write_settings(tmp_path, values)) as run:
            children = psutil.Process().children()
            (server,) = [child for child in children if "serve" in child.cmdline()]
            server.kill()
            await run.engine.update_weights(model, 1)  # fails before the death is noticed

    with pytest.raises(LaunchError, match=r"inference server-0 .* was ended by SIGKILL"):
        await lose_a_server()


async def test_a_server_that_is_killed_is_started_again_while_the_other_goes_on(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The new one serves the current weights, and no episode is lost."""
    values = settings(
        tmp_path,
        model,
        total_train_steps=100_000,
        rollout={"backend": "embedded:d2"},
        actor={"optimizer": {"lr": 1e-5}},  # rewards keep differing
    )
    alone = together = 0
    async with open_run(write_settings(tmp_path, values)) as run:
        fleet = run.engine.fleet
        victim, other = await run.engine.stats()
        async for batch in run.rollouts():
            metrics = await run.update(batch)
            assert metrics["publish/version"] == run.step
            assert metrics["publish/probe_abs_max"] < 1e-4
            assert run.executor is not None
            outcomes = run.executor.stats().outcomes
            assert not {name for name, n in outcomes.items() if n} - {"ok", "truncated", "stale"}
            if run.step == 2:
                os.kill(server_pid(run, 0), signal.SIGKILL)
            alone += fleet.n_up == 1
            while alone == 2 and fleet.restarts == 0:  # noqa: ASYNC110 - no event crosses it
                await asyncio.sleep(0.05)  # leave it the processor
            together += fleet.restarts == 1 and fleet.n_up == 2
            if together == 3:
                break
        assert alone >= 2
        served = await run.engine.stats()
        assert victim not in served
        assert other in served
        (new,) = served.keys() - {other}
        assert served[new]["version"] == run.version
        assert served[new]["updates"] >= 2  # the current weights, and those of the next steps
        assert served[new]["generated_tokens"] > 0
    (warning,) = [r.getMessage() for r in caplog.records if "starting it again" in r.getMessage()]
    assert "inference server-0" in warning
    assert "was ended by SIGKILL" in warning


def server_pid(run: Run, index: int) -> int:
    return json.loads((run.folder.logs / f"server-{index}.json").read_text())["pid"]


def test_data_shorter_than_a_batch_end_the_run_well(tmp_path: Path, model: Path) -> None:
    values = settings(
        tmp_path,
        model,
        train_dataset={"use": f"{TASK}:problems", "args": {"n": 3}},
        total_train_steps=None,
        total_train_epochs=2,
        rollout={"consumer_batch_size": 8},
    )
    with Driver(tmp_path, values) as run:
        assert run.wait() == 0, run.said()
        assert run.summary["steps"] == 1
        (step,) = metrics_of(run.folder)
        assert step["rollout/episodes"] == 3 * 2 * 4
