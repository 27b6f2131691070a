"""One worker process that runs reward functions, as the driver sees it."""

import asyncio
import signal
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

from areal_agent.aio import run_to_end
from areal_agent.children import ChildProcess
from areal_agent.errors import (
    AgentError,
    DataError,
    LaunchError,
    RewardCrashError,
    RewardError,
    RewardTimeoutError,
)
from areal_agent.launch.connected import connected_child
from areal_agent.launch.described import revive
from areal_agent.launch.json_frames import Message, encode, receive
from areal_agent.launch.shipping import Shipped

_PROGRAM = "areal_agent.launch.reward_worker"
_DEATH_SECONDS = 5.0


class RewardProcess:
    """A worker that runs. A call that was given up leaves it busy: it is of no more use then."""

    def __init__(
        self,
        number: int,
        stack: AsyncExitStack,
        child: ChildProcess,
        reader: StreamReader,
        writer: StreamWriter,
    ) -> None:
        self.number = number
        self._stack = stack
        self._child = child
        self._reader = reader
        self._writer = writer
        self._is_busy = False
        self._loaded: set[str] = set()
        self.has_served = False
        """It has run a function already, whose doings may still be felt."""
        self.last_seconds = 0.0
        """What the last call took of its own."""

    @classmethod
    async def start(
        cls,
        number: int,
        *,
        log: Path,
        env: Mapping[str, str],
        memory_bytes: int,
        cpu_seconds: float,
    ) -> Self:
        """Start a worker; whoever gets it must `end` it.

        Raises:
            LaunchError: the operating system refused.
        """
        async with AsyncExitStack() as stack:
            limits = (str(memory_bytes), str(cpu_seconds))
            name = f"the process of reward-{number}"
            parts = await connected_child(stack, name, _PROGRAM, limits, log=log, env=env)
            return cls(number, stack.pop_all(), *parts)
        raise AssertionError  # the stack swallows nothing

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._child.name

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        return self._child.pid

    @property
    def is_ready(self) -> bool:
        """It lives and waits for a question, as far as is known."""
        return not self._is_busy and self._child.returncode is None

    def has(self, function: Shipped) -> bool:
        """Tell whether it has imported a function."""
        return function.key in self._loaded

    async def load(self, function: Shipped, call: bytes) -> None:
        """Import a function, and what the arguments of its first call need.

        Raises:
            LaunchError: the worker ended.
            RewardError: it cannot be imported.
        """
        message = {"load": function.key, "sys_path": sys.path}
        try:
            answer = await self._ask(message, function.body + call)
        except EOFError as error:
            raise LaunchError(str(error)) from None
        if "error" in answer:
            raise RewardError(
                f"a worker process cannot import the reward function {function.name}, or what its "
                f"arguments need: "
                f"{answer['error']['type']}: {answer['error']['message']}\n"
                f"{answer['error']['traceback']}"
            )
        self._loaded.add(function.key)

    async def call(self, function: Shipped, call: bytes) -> float | None:
        """Run a function that it has loaded.

        Raises:
            RewardCrashError: the worker ended.
            RewardTimeoutError: it used up its CPU time.
            RewardError: the function raised, or returned no number.
            DataError: the function said so.
        """
        try:
            answer = await self._ask({"call": function.key}, call)
        except EOFError as error:
            if self._child.returncode == -signal.SIGXCPU:
                raise RewardTimeoutError(
                    f"the reward function {function.name} used more CPU time than a call may "
                    "(rollout.reward.cpu_seconds)"
                ) from None
            raise RewardCrashError(
                f"the reward function {function.name} ended its process: {error}"
            ) from None
        finally:
            self.has_served = True
        self._is_busy = answer["retires"]
        if "error" in answer:
            raise _failure(function.name, answer["error"])
        self.last_seconds = answer["seconds"]
        return answer["value"]

    async def end(self) -> None:
        """Kill it and all it started, also when cancelled meanwhile."""
        await run_to_end(self._stack.aclose)

    async def _ask(self, message: Message, body: bytes) -> Message:
        self._is_busy = True
        try:
            self._writer.write(encode({**message, "bytes": len(body)}))
            self._writer.write(body)
            await self._writer.drain()
            answer = await receive(self._reader)
        except ValueError as error:
            raise EOFError("it wrote into the socket of its worker") from error
        except (OSError, EOFError) as error:
            raise EOFError(await self._describe_end()) from error
        self._is_busy = False
        return answer

    async def _describe_end(self) -> str:
        with suppress(LaunchError, TimeoutError):
            async with asyncio.timeout(_DEATH_SECONDS):
                await self._child.wait_died()
        return self._child.describe_end()


def _failure(name: str, error: Mapping[str, str]) -> RewardError | DataError:
    made = revive(error, otherwise=AgentError)
    if isinstance(made, RewardError | DataError):
        return made
    more = " (rollout.reward.memory_mb)" if error["type"] == MemoryError.__name__ else ""
    failure = RewardError(
        f"the reward function {name} failed: {error['type']}: {error['message']}{more}"
    )
    failure.__cause__ = made
    return failure
