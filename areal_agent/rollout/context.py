"""What an episode may ask while it runs: facts about itself, a shared client, and its inputs.

`now()`, `random()` and `tool()` are recorded, so that the episode can be replayed. Each episode
runs in a task of its own, so what is set here is seen by that episode only.
"""

import random as _random
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from areal_agent.aio import PerLoop
from areal_agent.net.clients import HttpClients, external_client
from areal_agent.registry import resolve
from areal_agent.rollout.inputs import Inputs, Tool, run_tool
from areal_agent.rollout.limits import current_limits
from areal_agent.rollout.live import current_episode
from areal_agent.types import PromptId


@dataclass(frozen=True, slots=True)
class WorkflowContext:
    """Facts about the running episode. All are empty outside of one."""

    is_eval: bool = False
    """True in evaluation: no exploration bonus, no side effects on training."""
    task_id: str | None = None
    """Names the group of episodes that were started together."""
    prompt_id: PromptId | None = None
    episode_id: str | None = None


TOOL_SECONDS = 60.0
"""How long a tool may take, where nobody says."""

_OUTSIDE = WorkflowContext()
_clients: ContextVar[HttpClients | None] = ContextVar("areal_agent.clients", default=None)
_without_run = PerLoop(external_client, httpx.AsyncClient.aclose)


def _inputs() -> Inputs | None:
    episode = current_episode()
    return None if episode is None else episode.inputs


def get() -> WorkflowContext:
    """Return the running episode's context."""
    episode = current_episode()
    return _OUTSIDE if episode is None or episode.context is None else episode.context


def stat_scope() -> str:
    """Return the prefix of this episode's metrics: ``rollout`` or ``eval-rollout``."""
    return "eval-rollout" if get().is_eval else "rollout"


def now() -> float:
    """Return the time in seconds since 1970, as `time.time` does. A replay returns the same."""
    inputs = _inputs()
    return time.time() if inputs is None else inputs.now()


def random() -> _random.Random:
    """Return the episode's source of random choices, always the same object.

    Its seed derives from the run's seed, the prompt and the member of the group: it repeats from
    run to run and differs within a group. Outside of an episode, it is a new one.
    """
    inputs = _inputs()
    return _random.Random() if inputs is None else inputs.random()


async def tool(function: Tool | str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a tool: await an async function, or run a plain one in a thread, so that it may block.

    Args:
        function: the tool, or its name: ``module:function`` or ``file.py:function``.
        *args: its arguments; with those in `kwargs`, they are recorded.
        **kwargs: the same, by name.

    Returns:
        What it returns; of a replay, what it returned then. Only what JSON can hold is replayed.

    Raises:
        LimitReached: the episode may call no more tools.
        TimeoutError: it took longer than `TOOL_SECONDS`; `call_tool` takes another limit.
        Exception: what it raises.
    """
    return await call_tool(function, args, kwargs)


async def call_tool(
    function: Tool | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    timeout_seconds: float | None = TOOL_SECONDS,
    counted: bool = True,
) -> Any:
    """Call a tool as `tool` does, with a limit of its own. None: only the episode's.

    What is not `counted` is recorded and replayed, but is none of the calls that the episode may
    make: a judge, for instance.

    Raises:
        LimitReached: the episode may call no more of them.
    """
    found: Tool = (
        resolve(function, kind="tools", base=Path.cwd()) if isinstance(function, str) else function
    )
    if counted:
        current_limits().runs_tool()
    kwargs = {} if kwargs is None else kwargs
    inputs = _inputs()
    if inputs is None:
        return await run_tool(found, args, kwargs, timeout_seconds=timeout_seconds)
    return await inputs.tool(found, args, kwargs, timeout_seconds=timeout_seconds)


async def get_httpx_client() -> httpx.AsyncClient:
    """Return the client that all episodes share for calls to the outside, such as tools.

    It honours proxy variables and lives as long as the run: do not close it. Outside of a run, as
    in a test or a notebook, each event loop has one, which is closed with it.
    """
    clients = _clients.get()
    return await _without_run.get() if clients is None else clients.external()


@contextmanager
def use_clients(clients: HttpClients) -> Generator[None]:
    """Lend `clients` to the episodes that are started in the body."""
    token = _clients.set(clients)
    try:
        yield
    finally:
        _clients.reset(token)
