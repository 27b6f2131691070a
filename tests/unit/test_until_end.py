"""A command ends with its exit code, whatever users' code has left behind."""

import subprocess
import sys

import pytest

THREAD = (
    "await asyncio.sleep(0); loop.run_in_executor(None, time.sleep, 99); await asyncio.sleep(0)"
)
TASK = "kept = loop.create_task(holds_on()); await asyncio.sleep(0)"
COROUTINE = "global kept; kept = holds_on(); kept.send(None)"


@pytest.mark.parametrize("left", [THREAD, TASK, COROUTINE])
def test_what_is_left_behind_keeps_no_command_from_ending(left):
    code = f"""
import asyncio, time
from areal_agent import until_end
from areal_agent.errors import StallError
until_end.LEFT_SECONDS = 0.2

async def holds_on():
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            pass

async def main():
    loop = asyncio.get_running_loop()
    {left}
    raise StallError("it hangs")

until_end.end_process(lambda: until_end.run_until_signal(main()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 4, done.stderr
    assert done.stderr.endswith("error: it hangs\n")


def test_an_exit_in_a_task_of_users_does_not_pass_for_the_end_of_the_run():
    code = """
import asyncio, sys
from areal_agent.until_end import end_process, run_until_signal

async def leaves():
    sys.exit(0)

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(leaves())
        await asyncio.Event().wait()

end_process(lambda: run_until_signal(main()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert "error: a task of users' code raised SystemExit(0)" in done.stderr
    assert "in leaves" in done.stderr


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("raise ValueError('a bug')", 1, "ValueError: a bug\n"),
    ],
)
def test_exit_codes(body, code, said):
    program = f"from areal_agent.until_end import end_process\ndef run():\n    print('x'); {body}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}end_process(run)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "x\n")
    assert done.stderr.endswith(said)
