"""Agents in worker processes: what they are handed, what they return, and how they may end."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from gateway_support import GCONFIG, Stage, alive, stage, until

from areal_agent.aio import collect
from areal_agent.config.inference import AgentWorkersConfig
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.launch.agent_pool import AgentPool
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.process_agent import ProcessAgent

HERE = Path(__file__).parent


@dataclass
class Hosts:
    """Worker processes, and a gateway for their agents."""

    playing: Stage
    pool: AgentPool
    logs: Path
    use: str
    args: dict[str, Any]

    async def episode(self, *, seconds: float = 60.0, **data: Any) -> EpisodeRun:
        agent = self.pool.agent(f"hosted_agents.py:{self.use}", self.args, HERE)
        workflow = AgentWorkflow(ProcessAgent(self.pool, agent), self.playing.gateway, GCONFIG)
        spec = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0)
        return await run_episode(
            workflow, self.playing.engine, data, spec, limits=LimitsConfig(seconds=seconds)
        )

    def log(self, slot: int = 0) -> str:
        return (self.logs / f"agent-{slot}.log").read_text(encoding="utf-8")


@asynccontextmanager
async def hosting(
    logs: Path, use: str, *, args: dict[str, Any] | None = None, **config: Any
) -> AsyncGenerator[Hosts]:
    async with asyncio.timeout(100), stage() as playing:
        pool = AgentPool(AgentWorkersConfig(**{"n": 1, **config}))
        hosts = Hosts(playing, pool, logs, use, args or {})
        pool.agent(f"hosted_agents.py:{use}", hosts.args, HERE)
        try:
            async with pool.running(logs):
                yield hosts
        finally:
            assert [p for p in psutil.Process().children() if "agent_worker" in command(p)] == []


def command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def failure(run: EpisodeRun) -> str:
    assert run.episode.failure is not None
    return run.episode.failure.message


async def test_a_sync_agent_is_trained_on_what_it_was_answered(tmp_path: Path) -> None:
    async with hosting(tmp_path, "Twice", args={"reward": 0.5}) as hosts:
        hosts.playing.says += ["a", "b"]
        run = await hosts.episode()
        [row] = run.rows
        text = hosts.playing.chat.decode(
            [t for t, m in zip(row.input_ids, row.loss_mask, strict=True) if m]
        )
    assert (run.episode.outcome, row.reward) == ("ok", 0.5)
    assert text == "a<|im_end|>b<|im_end|>"
    assert row.metrics["prefix_hits"] == 1
    assert row.metrics["undelivered"] == 0


async def test_an_async_agent_gets_an_async_client(tmp_path: Path) -> None:
    async with hosting(tmp_path, "Asynchronous") as hosts:
        runs = [await hosts.episode() for _ in range(2)]
    assert [run.episode.reward for run in runs] == [1.0, 1.0]


async def test_a_function_finds_the_gateway_by_the_environment(tmp_path: Path) -> None:
    async with hosting(tmp_path, "by_environment", args={"factor": 0.5}, n=3) as hosts:
        runs = await collect(hosts.episode(x=x) for x in range(7))
    assert [run.episode.reward for run in runs] == [x * 0.5 for x in range(7)]


async def test_rewards_may_be_posted_from_a_process(tmp_path: Path) -> None:
    async with hosting(tmp_path, "rewards") as hosts:
        run = await hosts.episode()
    assert run.episode.reward == 0.25


async def test_returned_values_mean_what_they_mean_inline(tmp_path: Path) -> None:
    expected = {
        "numpy": ("ok", 0.5),
        "list of numpy": ("ok", 1.0),
        "true": ("ok", 1.0),
        **dict.fromkeys(
            ("nan", "text", "object", "lambda", "none", "huge"), ("reward_error", None)
        ),
    }
    async with hosting(tmp_path, "returns") as hosts:
        runs = {what: await hosts.episode(what=what) for what in expected}
    found = {what: (run.episode.outcome, run.episode.reward) for what, run in runs.items()}
    assert found == expected
    assert "got '1.0'" in failure(runs["text"])
    assert "got <object" in failure(runs["object"])
    assert "bytes" in failure(runs["huge"])


async def test_the_environment_is_as_before_after_each_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-real")
    monkeypatch.setenv("MINE_TOO", "handed on")
    env = {"MINE": "1", "MINE_TOO": None}
    async with hosting(tmp_path, "tells", env=env) as hosts:
        runs = [await hosts.episode() for _ in range(2)]
        log = hosts.log()
    assert [run.episode.outcome for run in runs] == ["ok", "ok"]
    first, second = [line for line in log.splitlines() if line.startswith("pid")]
    assert first == second
    assert (
        "found ANTHROPIC_API_KEY ANTHROPIC_BASE_URL MINE MINE_TOO OPENAI_API_KEY OPENAI_BASE_URL "
        f"in {os.getcwd()}, temporary []"
    ) in first
    assert log.count("on stderr") == log.count("on file descriptor 1") == 2
    assert "s3cret" not in log


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "ended with exit code 7"),
        ("kill", "was ended by SIGKILL"),
        ("segfault", "was ended by SIGSEGV"),
        ("fork", "ended with exit code 8"),
    ],
)
async def test_a_process_that_dies_ends_only_its_episode(
    tmp_path: Path, how: str, told: str
) -> None:
    async with hosting(tmp_path, "ends") as hosts:
        died = await hosts.episode(how=how)
        other = await hosts.episode(how="not")
    assert died.episode.outcome == "workflow_error"
    assert told in failure(died)
    assert f"the last words before {how}" in failure(died)
    assert list(died.rows) == []
    assert other.episode.outcome == "ok"


@pytest.mark.parametrize(("how", "told"), [("raise", "KeyError: 'oops'"), ("sys.exit", "Exit: 3")])
async def test_an_agent_that_raises_keeps_its_process(tmp_path: Path, how: str, told: str) -> None:
    async with hosting(tmp_path, "ends") as hosts:
        runs = [await hosts.episode(how=way) for way in (how, "not")]
    assert [run.episode.outcome for run in runs] == ["workflow_error", "ok"]
    assert told in failure(runs[0])
    assert runs[0].episode.failure is not None
    assert "hosted_agents.py" in runs[0].episode.failure.traceback


async def test_data_that_json_cannot_hold_are_told(tmp_path: Path) -> None:
    async with hosting(tmp_path, "ends") as hosts:
        run = await hosts.episode(how=object())
        other = await hosts.episode(how="not")
    assert (run.episode.outcome, other.episode.outcome) == ("workflow_error", "ok")
    assert "cannot hold them: Object of type object" in failure(run)


async def test_an_endless_loop_is_killed_at_the_time_limit_with_its_child(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with hosting(tmp_path, "hangs") as hosts:
        run = await hosts.episode(seconds=1.0, pids=str(pids))
        await until(lambda: not alive(pids))
        again = await hosts.episode(seconds=0.5, pids=str(pids))
    assert [r.episode.outcome for r in (run, again)] == ["timeout", "timeout"]


async def test_a_cancelled_episode_takes_its_process_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with hosting(tmp_path, "hangs") as hosts:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(hosts.episode(pids=str(pids)))
            await until(pids.exists)
            task.cancel()
        await until(lambda: not alive(pids))
        assert len(hosts.playing.gateway.sessions) == 0


async def test_waiting_for_a_process_is_no_part_of_the_episodes_time(tmp_path: Path) -> None:
    async with hosting(tmp_path, "naps") as hosts, asyncio.TaskGroup() as group:
        runs = [group.create_task(hosts.episode(seconds=2.0, nap=0.8)) for _ in range(4)]
    assert [run.result().episode.outcome for run in runs] == ["rejected"] * 4


async def test_no_key_is_written_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with hosting(tmp_path, "Twice") as hosts:
        await hosts.episode()
        log = hosts.log()
    assert "sk-areal" not in log + caplog.text
