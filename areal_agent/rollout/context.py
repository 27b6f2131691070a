"""What an episode may ask about itself while it runs: `get()`, `stat_scope()`, a shared client.

Each episode runs in a task of its own, so what is set here is seen by that episode only.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import httpx

from areal_agent.net.clients import HttpClients
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


_OUTSIDE = WorkflowContext()
_current: ContextVar[WorkflowContext] = ContextVar("areal_agent.context", default=_OUTSIDE)
_clients: ContextVar[HttpClients | None] = ContextVar("areal_agent.clients", default=None)


def get() -> WorkflowContext:
    """Return the running episode's context."""
    return _current.get()


def stat_scope() -> str:
    """Return the prefix of this episode's metrics: ``rollout`` or ``eval-rollout``."""
    return "eval-rollout" if _current.get().is_eval else "rollout"


async def get_httpx_client() -> httpx.AsyncClient:
    """Return the client that all episodes share for calls to the outside, such as tools.

    It honours proxy variables and lives as long as the run: do not close it.

    Raises:
        RuntimeError: there is no run around the caller.
    """
    clients = _clients.get()
    if clients is None:
        raise RuntimeError(
            "no run owns an HTTP client here: call get_httpx_client() inside arun_episode, or open "
            "an httpx.AsyncClient of your own"
        )
    return clients.external()


def set_context(context: WorkflowContext) -> None:
    """Set the context of the current task. Called once, where an episode starts."""
    _current.set(context)


@contextmanager
def use_clients(clients: HttpClients) -> Generator[None]:
    """Lend `clients` to the episodes that are started in the body."""
    token = _clients.set(clients)
    try:
        yield
    finally:
        _clients.reset(token)
