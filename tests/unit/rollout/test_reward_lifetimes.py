"""Whose worker processes rewards run in, and that they end with it: loops, threads, programs."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import reward_functions as fn
from scripted_server import until

from areal_agent.rollout.reward import AsyncRewardWrapper as Reward


def test_an_alarm_works_although_the_loop_is_in_another_thread():
    """S11: functions run on the main thread of a worker."""
    got = []

    def run():
        got.append(asyncio.run(both()))

    async def both():
        alarmed = Reward(fn.alarmed)
        return [await alarmed(5.0), await alarmed(0.0)]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert got == [[0.25, 1.0]]


OUTSIDE = """
import asyncio, gc, subprocess, sys
import reward_functions as fn
from areal_agent import AsyncRewardWrapper
kept = AsyncRewardWrapper(fn.pid, max_workers=1)

async def main():
    pids = [await kept(), await kept()]
    assert pids[0] == pids[1]
    dropped = AsyncRewardWrapper(fn.pid)
    pids.append(await dropped())
    hung = AsyncRewardWrapper(fn.sleeps)
    task = asyncio.ensure_future(hung(60))
    await asyncio.sleep(0.3)
    task.cancel()
    del dropped, hung, task
    gc.collect()
    return pids

pids = [*asyncio.run(main()), *asyncio.run(main())]
assert not {"torch", "transformers"} & sys.modules.keys()
alive = subprocess.run(["ps", "-o", "pid=", "-p", ",".join(str(int(p)) for p in pids)],
                       capture_output=True, text=True)
print(len(set(pids)), repr(alive.stdout))
"""


def test_outside_of_a_run_workers_end_with_the_loop_or_the_wrapper_and_nobody_warns():
    """One wrapper in two loops, one dropped in a coroutine, a call that is cancelled."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", OUTSIDE],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("4 ''\n", "", 0)


KILLED = """
import asyncio, os, sys
import reward_functions as fn
from areal_agent import AsyncRewardWrapper
asyncio.run(AsyncRewardWrapper(fn.hangs)(sys.argv[1]))
"""


async def test_a_hung_worker_dies_with_a_parent_that_is_killed(tmp_path):
    started = tmp_path / "pid"
    driver = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(started)),
        cwd=Path(__file__).parent,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    async with asyncio.timeout(30):
        await until(lambda: started.exists() and started.read_text())
        pid = int(started.read_text())
        driver.kill()
        await driver.wait()
        await until(lambda: not is_alive(pid))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


UNGUARDED = """
import asyncio
from areal_agent import AsyncRewardWrapper

def reward():
    return 1.0

async def main():
    return await AsyncRewardWrapper(reward)()

GUARD
    print(asyncio.run(main()))
"""


@pytest.mark.parametrize(
    ("guard", "out", "err"),
    [
        ('if __name__ == "__main__":', "1.0\n", ""),
        ("if True:", "", "put what starts the run below"),
    ],
)
def test_functions_of_a_program_itself_need_its_guard(tmp_path, guard, out, err):
    """S13: the worker imports the program's file; one that starts a run there says what to do."""
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED.replace("GUARD", guard))
    done = subprocess.run(
        [sys.executable, str(program)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == out
    assert err in done.stderr
    assert bool(done.stderr) == bool(err)
