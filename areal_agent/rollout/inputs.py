"""What an episode asks of the world besides a model: time, chance, tools. All of it is taped."""

import asyncio
import contextvars
import functools
import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from areal_agent.aio import PerLoop
from areal_agent.rollout.live import doing
from areal_agent.rollout.plain import error_facts, exact_json, shown
from areal_agent.rollout.tool_threads import ToolThreads
from areal_agent.types import Tape

Tool = Callable[..., Any]
"""A function, plain or async."""


class Inputs(Protocol):
    """Where an episode's inputs come from: the world, or a record of it."""

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        ...

    def random(self) -> random.Random:
        """Return the source of the episode's random choices, always the same one."""
        ...

    async def tool(
        self,
        function: Tool,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        timeout_seconds: float | None,
    ) -> Any:
        """Call a tool and return what it returns, or raise what it raises."""
        ...


class TapedInputs:
    """The world, with everything that it says noted on a tape."""

    def __init__(self, tape: Tape, random_seed: Callable[[], int]) -> None:
        self._tape = tape
        self._random_seed = random_seed
        self._random: random.Random | None = None

    def now(self) -> float:
        """See `Inputs.now`."""
        now = time.time()
        self._tape.clock.append(now)
        return now

    def random(self) -> random.Random:
        """See `Inputs.random`."""
        if self._random is None:
            self._tape.random_seed = seed = self._random_seed()
            self._random = random.Random(seed)
        return self._random

    async def tool(
        self,
        function: Tool,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        timeout_seconds: float | None,
    ) -> Any:
        """See `Inputs.tool`."""
        name = tool_name(function)
        call = self._tape.begin("tool", name)
        call.args = exact_json([list(args), dict(kwargs)])
        if call.args is None:
            call.shown = shown((args, kwargs))
        try:
            with doing(f"the tool {name}"):
                result = await run_tool(function, args, kwargs, timeout_seconds=timeout_seconds)
        except Exception as error:
            call.error = error_facts(error)
            self._tape.end(call)
            raise
        call.result = exact_json(result)
        if call.result is None:
            call.shown = f"{call.shown} {shown(result)}".strip()
        self._tape.end(call)
        return result


def tool_name(function: Tool) -> str:
    """Name a function, also one whose first arguments are bound."""
    while isinstance(function, functools.partial):
        function = cast("Tool", function.func)
    return getattr(function, "__name__", type(function).__name__)


async def run_tool(
    function: Tool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    timeout_seconds: float | None = None,
) -> Any:
    """Await an async function, or run a plain one in a thread, so that it may block.

    Raises:
        TimeoutError: it took too long. A thread cannot be ended: it goes on, and nobody listens.
    """
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            result = await _in_thread(function, args, kwargs)
            return await result if inspect.isawaitable(result) else result
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"the tool {tool_name(function)} took longer than {timeout_seconds:g} s"
        ) from error


async def _in_thread(function: Tool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run `function` in a thread that runs nothing else meanwhile; see `ToolThreads`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits any more
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is raised where the tool was called
            failure = _settable(error)
        except BaseException as error:  # noqa: BLE001 - SystemExit ends a tool, not the run
            failure = RuntimeError(f"the tool raised {type(error).__name__}: {error}")
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop is closed: the run has ended

    (await _threads.get()).run(f"tool {tool_name(function)}", work)
    return await future


_threads = PerLoop(ToolThreads, ToolThreads.aclose)


def _settable(error: Exception) -> Exception:
    """What a future can hold: it refuses StopIteration."""
    if isinstance(error, StopIteration):
        return RuntimeError(f"the tool raised StopIteration: {error.value!r:.80}")
    return error
