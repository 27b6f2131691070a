"""One worker process that runs agents, as the driver sees it: questions and answers."""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_agent.aio import task_group
from areal_agent.children import ChildProcess
from areal_agent.errors import AgentError, ConfigError, DataError, LaunchError
from areal_agent.launch.connected import connected_child
from areal_agent.launch.described import revive
from areal_agent.launch.json_frames import Message, encode, receive

_PROGRAM = "areal_agent.launch.agent_worker"
_DEATH_SECONDS = 5.0
_TRACEBACK_LINES = 16


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Which agent. A worker imports it when it first hears of it."""

    use: str
    """As in the settings: ``module:Name`` or ``file.py:Name``."""
    args: Mapping[str, Any]
    base: Path
    """Folder that relative paths start from."""

    def message(self) -> Message:
        """Return it as a worker takes it; it imports from where we do."""
        return {
            "use": self.use,
            "args": dict(self.args),
            "base": str(self.base.absolute()),
            "sys_path": sys.path,
        }


class AgentProcess:
    """A worker that runs. A call that was given up leaves it busy: it is of no more use then."""

    def __init__(self, child: ChildProcess, reader: StreamReader, writer: StreamWriter) -> None:
        self.ended = asyncio.Event()
        """It has ended, or shall be killed."""
        self._gone = asyncio.Event()
        self._child = child
        self._reader = reader
        self._writer = writer
        self._is_busy = False

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        return self._child.pid

    @property
    def is_ready(self) -> bool:
        """It lives and waits for a question."""
        return not self._is_busy and not self.ended.is_set()

    async def load(self, agent: AgentSpec) -> None:
        """Import an agent.

        Raises:
            ConfigError: it cannot be imported or made, with the end of the worker's traceback.
        """
        try:
            answer = await self._ask({"agent": agent.message()})
        except AgentError as error:
            raise ConfigError(f"the agent {agent.use} ended its process: {error}") from None
        if "error" in answer:
            raise ConfigError(_load_failure(agent.use, answer["error"]))

    async def run(
        self, agent: AgentSpec, data: Mapping[str, Any], *, base_url: str, api_key: str
    ) -> Any:
        """Run one episode; returns what the agent returned, as JSON holds it.

        Raises:
            AgentError: the agent raised, or its process died.
            ArealAgentError: the agent raised one of this package's own.
            DataError: the data hold what JSON cannot.
        """
        message = {"agent": agent.message(), "data": data, "base_url": base_url, "api_key": api_key}
        answer = await self._ask(message)
        if "error" in answer:
            raise revive(answer["error"], otherwise=AgentError)
        return answer["value"]

    async def end(self) -> None:
        """Kill it and all it started; returns when they are gone."""
        self.ended.set()
        await self._gone.wait()

    async def watch(self) -> None:
        """Notice its end, also while something that it started holds its socket open."""
        with suppress(LaunchError):
            await self._child.wait_died()
        self.ended.set()
        self._writer.transport.abort()

    def was_stopped(self) -> None:
        """Let those go on who wait for its end."""
        self.ended.set()
        self._gone.set()

    async def _ask(self, message: Message) -> Message:
        try:
            question = encode(message)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"an agent in a process of its own gets its data as JSON, which cannot hold them: "
                f"{error}"
            ) from error
        self._is_busy = True
        try:
            self._writer.write(question)
            await self._writer.drain()
            answer = await receive(self._reader)
        except (OSError, EOFError) as error:
            raise AgentError(await self._describe_death()) from error
        self._is_busy = False
        return answer

    async def _describe_death(self) -> str:
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await self.ended.wait()
        except TimeoutError:
            return f"{self._child.name} closed its connection; {self._child.describe_end()}"
        return self._child.describe_end()


@asynccontextmanager
async def agent_process(
    name: str, *, log: Path, env: Mapping[str, str]
) -> AsyncGenerator[AgentProcess]:
    """Start a worker; leaving kills it and all that it started.

    Args:
        name: what messages call it.
        log: file that its and its agents' output is appended to.
        env: its environment; it gets nothing of ours besides.

    Raises:
        LaunchError: the operating system refused.
    """
    process: AgentProcess | None = None
    try:
        async with AsyncExitStack() as stack:
            parts = await connected_child(stack, name, _PROGRAM, log=log, env=env)
            process = AgentProcess(*parts)
            watching = await stack.enter_async_context(task_group())
            stack.callback(watching.create_task(process.watch(), name=f"watch {name}").cancel)
            yield process
    finally:
        if process is not None:
            process.was_stopped()


def _load_failure(use: str, error: Mapping[str, str]) -> str:
    known = error["type"] == ConfigError.__name__
    what = error["message"] if known else f"{error['type']}: {error['message']}"
    lines = error["traceback"].splitlines()[-_TRACEBACK_LINES:]
    trace = "".join(f"\n    {line}" for line in lines)
    return f"the agent {use} cannot be run in a process of its own: {what}{trace}"
