"""The worker processes of a run's agents: started as they are needed, replaced when they end."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from areal_agent.aio import run_shielded, task_group
from areal_agent.config.inference import AgentWorkersConfig
from areal_agent.errors import ConfigError
from areal_agent.launch.agent_process import AgentProcess, AgentSpec, agent_process

HANDED_ON = (
    "HOME",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "OMP_NUM_THREADS",
    "PATH",
    "PYTHONPATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
)
"""The variables of ours that every worker gets, with those that begin with ``LC_``."""


class AgentPool:
    """Lends worker processes, each to one episode at a time.

    Lifetime: constructed, it knows agents by name; inside `running`, it lends; afterwards no
    process is left.
    """

    def __init__(self, config: AgentWorkersConfig) -> None:
        self._config = config
        self._agents: list[AgentSpec] = []
        self._n_checked = 0
        self._group: asyncio.TaskGroup | None = None
        self._idle: asyncio.Queue[AgentProcess] = asyncio.Queue()
        self._free = list(range(config.n))
        self._keepers: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._starting = 0
        self._log_dir = Path()
        self._scratch: Path | None = None
        self._env: dict[str, str] = {}

    def agent(self, use: str, args: Mapping[str, Any], base: Path) -> AgentSpec:
        """Make an agent known by its name; nothing is imported before `check`.

        Raises:
            ConfigError: `args` are more than JSON can hold.
        """
        try:
            json.dumps(args)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the agent {use} runs in a process of its own, so its args must be what JSON can "
                f"hold: {error}"
            ) from error
        spec = AgentSpec(use, args, base)
        if spec not in self._agents:
            self._agents.append(spec)
        return spec

    @asynccontextmanager
    async def running(self, log_dir: Path) -> AsyncGenerator[None]:
        """Lend processes to the body, whose output goes to ``agent-<i>.log`` in `log_dir`.

        Raises:
            ConfigError: an agent that is known by now cannot be imported or made.
            LaunchError: the operating system refuses processes.
        """
        self._env = worker_environment(self._config.env)
        self._log_dir = log_dir
        try:
            async with task_group() as group:
                self._group = group
                await self.check()
                yield
                for keeper in self._keepers:
                    keeper.cancel()
        finally:
            if self._scratch is not None:
                await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    async def check(self) -> None:
        """Import what no process has imported yet, in one of them.

        Raises:
            ConfigError: an agent cannot be imported or made.
        """
        if self._n_checked == len(self._agents):
            return
        async with self.lend() as process:
            await self._load(process, self._n_checked)
        self._n_checked = len(self._agents)

    def describe(self) -> list[str]:
        """Say how many processes there are, and how many episodes wait for one."""
        there = self._config.n - len(self._free)
        return [
            f"{there} of at most {self._config.n} processes, {self._idle.qsize()} of them idle; "
            f"{self._waiting} episodes wait for one"
        ]

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[AgentProcess]:
        """Wait for a process, and keep it in the body; left busy, it is killed."""
        process = await self._take()
        try:
            yield process
        finally:
            if process.is_ready:
                self._idle.put_nowait(process)
            else:
                await run_shielded(process.end())

    async def _take(self) -> AgentProcess:
        self._waiting += 1
        try:
            while True:
                self._start_what_is_missing()
                process = await self._idle.get()
                if process.is_ready:
                    return process
        finally:
            self._waiting -= 1

    def _start_what_is_missing(self) -> None:
        assert self._group is not None, "agents have no processes: use the pool inside `running`"
        while self._free and self._waiting > self._idle.qsize() + self._starting:
            self._starting += 1
            keeper = self._group.create_task(self._keep(self._free.pop(0)))
            self._keepers.add(keeper)
            keeper.add_done_callback(self._keepers.discard)

    async def _keep(self, slot: int) -> None:
        """Start a process, offer it, and clear away what is left when it has ended."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="areal-agent-"))
        scratch = self._scratch / str(slot)
        scratch.mkdir(exist_ok=True)
        name = f"agent-{slot}"
        log, env = self._log_dir / f"{name}.log", {**self._env, "TMPDIR": str(scratch)}
        try:
            try:
                async with agent_process(f"the process of {name}", log=log, env=env) as process:
                    await self._load(process, 0)
                    self._starting -= 1
                    self._idle.put_nowait(process)
                    await process.ended.wait()
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        finally:
            self._free.append(slot)
        self._start_what_is_missing()

    async def _load(self, process: AgentProcess, first: int) -> None:
        seconds = self._config.startup_timeout_seconds
        for agent in self._agents[first:]:
            try:
                async with asyncio.timeout(seconds):
                    await process.load(agent)
            except TimeoutError:
                raise ConfigError(
                    f"the agent {agent.use} was not imported within {seconds:g} s "
                    "(gateway.workers.startup_timeout_seconds)"
                ) from None


def worker_environment(given: Mapping[str, str | None]) -> dict[str, str]:
    """Return a worker's environment: what programs need of ours, and what the settings say.

    Raises:
        ConfigError: a variable is to be handed on that we do not have.
    """
    env = {n: v for n, v in os.environ.items() if n in HANDED_ON or n.startswith("LC_")}
    env["PYTHONUNBUFFERED"] = "1"  # what is printed is in the log when the process is killed
    for name, value in given.items():
        own = os.environ.get(name) if value is None else value
        if own is None:
            raise ConfigError(
                f"gateway.workers.env.{name} is null, which hands on the run's own value, but the "
                "run has none: set the variable, or give a value"
            )
        env[name] = own
    return env
