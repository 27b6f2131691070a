"""Servers that end by themselves: started again within a budget, lost, or the end of the run."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from test_launch_local import launch
from waiting import gone, until

from areal_agent.errors import LaunchError, ServerError
from areal_agent.launch.keep import keep_running


class Heard:
    """What a listener is told; `refuse` servers that come back are of no use."""

    def __init__(self, refuse: int = 0) -> None:
        self.told: list[tuple[str, int, object]] = []
        self.refuse = refuse

    def gone(self, index: int, why: Exception, *, returns: bool) -> None:
        self.told.append(("gone", index, returns))
        self.why = str(why)

    async def back(self, index: int, url: str, instance_id: str) -> None:
        self.told.append(("back", index, instance_id))
        if self.refuse:
            self.refuse -= 1
            raise ServerError("it cannot load the current weights")


async def test_what_dies_or_is_killed_is_replaced_and_what_is_refused_is_too(
    tmp_path: Path,
) -> None:
    heard = Heard(refuse=1)
    async with asyncio.timeout(30), launch(tmp_path, n=2) as group, asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep_running(group, heard, max_restarts=3))
        first, other = group.endpoints
        os.kill(first.pid, signal.SIGSTOP)  # it hangs
        group.kill(0, "no answer for 60 s")
        await until(lambda: len(heard.told) == 4)
        assert [told[:2] for told in heard.told] == [("gone", 0), ("back", 0)] * 2
        assert "it cannot load the current weights" in heard.why
        refused, second = heard.told[1][2], group.endpoints[0]
        assert len({first.instance_id, refused, second.instance_id}) == 3
        assert heard.told[3][2] == second.instance_id
        assert group.endpoints[1] == other
        assert gone(first.pid)
        assert not keeping.done()
        os.kill(second.pid, signal.SIGKILL)
        await until(lambda: len(heard.told) == 6)
        assert "inference server-0" in heard.why
        assert "was ended by SIGKILL" in heard.why
        third = group.endpoints[0]
        keeping.cancel()
    assert gone(second.pid)
    assert gone(third.pid)
    assert gone(other.pid)


async def test_a_budget_that_is_used_up_ends_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    async with asyncio.timeout(30), launch(tmp_path) as group:
        monkeypatch.setenv("DUMMY_MODE", "fail")
        group.kill(0, "its engine broke")
        with pytest.raises(
            LaunchError,
            match=r"(?s)none of 1 inference servers is left, each started again 2 times "
            r"\(rollout.server.max_restarts\); the last one: before it answered, "
            r"inference server-0 .*exit code 1.*cannot load the model",
        ):
            await keep_running(group, heard, max_restarts=2)
    assert heard.told == [("gone", 0, True), ("gone", 0, True), ("gone", 0, False)]


async def test_one_of_two_may_be_lost_and_the_last_one_ends_it(tmp_path: Path) -> None:
    heard = Heard()
    async with asyncio.timeout(30), launch(tmp_path, n=2) as group, asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(ended(keep_running(group, heard, max_restarts=0)))
        group.kill(0, "no answer for 60 s")
        await until(lambda: heard.told == [("gone", 0, False)])
        assert "inference server-0" in heard.why
        assert "had to be killed: no answer for 60 s" in heard.why
        assert not keeping.done()
        os.kill(group.endpoints[1].pid, signal.SIGKILL)
        assert (await keeping).startswith(
            "none of 2 inference servers is left (rollout.server.max_restarts); the last one: "
            "inference server-1"
        )


async def ended(keeping) -> str:
    with pytest.raises(LaunchError) as caught:
        await keeping
    return str(caught.value)
