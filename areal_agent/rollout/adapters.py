"""Agents that speak to an OpenAI-compatible API, run as workflows."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

from areal_agent.errors import ConfigError
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.rewards import Style
from areal_agent.gateway.session import Session
from areal_agent.inference.base import InferenceEngine
from areal_agent.registry import is_function_of_data
from areal_agent.rollout import context
from areal_agent.rollout.export import session_rows
from areal_agent.rollout.limits import current_limits, stoppable
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters


class Agent(Protocol):
    """What a user's agent is: anything with an async `run`.

    `run` gets the dataset row and, by name, those of ``client`` (an `openai.AsyncOpenAI`),
    ``base_url``, ``api_key``, ``http_client``, ``httpx2_client`` and ``engine`` that it asks for.
    It returns the episode's reward, a reward for each interaction (by id, or as a list in order),
    or None when rewards were set over HTTP. An agent may have a `group_reward`, as workflows do.
    """

    run: Callable[..., Any]


class FunctionAgent:
    """An agent that is a function of the data."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.run = function


class AgentWorkflow(RolloutWorkflow):
    """Gives each episode of an agent a session at the gateway, and trains on what it captured."""

    def __init__(
        self,
        agent: Agent,
        gateway: Gateway,
        gconfig: GenerationHyperparameters,
        *,
        discount: float = 1.0,
        style: Style = "concat",
    ) -> None:
        """Check the agent.

        Args:
            agent: has ``async run(data, ...)``.
            gateway: entered while episodes run.
            gconfig: what calls are sampled with, where they do not say.
            discount: per turn, of later rewards; see `areal_agent.gateway.rewards`.
            style: ``concat`` joins turns into rows, ``individual`` makes a row of each.

        Raises:
            ConfigError: `run` is missing, is not async, or takes no data.
        """
        if not is_agent(agent):
            raise ConfigError(
                f"expected an agent with `async def run(self, data, ...)`, got {agent!r:.120}"
                f"{sync_advice(agent)}"
            )
        self.agent = agent
        self.group_reward = getattr(agent, "group_reward", None)
        self._gateway = gateway
        self._gconfig = gconfig
        self._discount = discount
        self._style: Style = style
        parameters = inspect.signature(agent.run).parameters.values()
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._wants = None if takes_all else {p.name for p in parameters}
        if self._wants is None or "client" in self._wants:
            importlib.import_module("openai")  # now: later it would hold up the event loop

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> list[Trajectory] | None:
        """Run one episode; None when the agent called no model."""
        trained = not context.get().is_eval
        limits = current_limits()
        async with self._gateway.session(
            engine, self._gconfig, trained=trained, on_tool_calls=limits.asked_for_tools
        ) as session:
            limits.capture = lambda reward: self._rows(session, reward)
            try:
                value = await stoppable(self.agent.run(data, **self._extra(session, engine)))
            except Exception as error:
                if session.failure is not None:
                    raise session.failure from error
                raise
            return self._rows(session, value)

    def _rows(self, session: Session, value: object) -> list[Trajectory] | None:
        return session_rows(session, value, discount=self._discount, style=self._style)

    def _extra(self, session: Session, engine: InferenceEngine) -> dict[str, Any]:
        offered: dict[str, Callable[[], Any]] = {
            "client": lambda: self._gateway.client(session),
            "base_url": lambda: self._gateway.base_url(session),
            "api_key": lambda: session.key,
            "http_client": lambda: self._gateway.http_client,
            "httpx2_client": lambda: self._gateway.httpx2_client,
            "engine": lambda: engine,
        }
        return asked_for(offered, self._wants)


def asked_for(offered: Mapping[str, Callable[[], Any]], named: Set[str] | None) -> dict[str, Any]:
    """Make those of `offered` that a signature names; with None, which takes anything, the usual.

    What only some installations have must be named.
    """
    wants = offered.keys() - {"httpx2_client"} if named is None else named
    return {name: make() for name, make in offered.items() if name in wants}


def is_agent(thing: object) -> bool:
    """Tell whether `thing` has an async `run` that takes data."""
    run = getattr(thing, "run", None)
    if not inspect.iscoroutinefunction(run):
        return False
    try:
        inspect.signature(run).bind_partial({})
    except TypeError:
        return False
    return True


def sync_advice(thing: object) -> str:
    """Say what to do with an agent, its class or a function that is not async; "" for others."""
    run = thing if is_function_of_data(thing) else getattr(thing, "run", None)
    if hasattr(thing, "arun_episode") or not callable(run) or inspect.iscoroutinefunction(run):
        return ""
    return (
        ": it is not async, and would hold up all other episodes. Write `async def`, or name it in "
        "the settings and set gateway.hosting to subprocess, which gives it a process of its own"
    )
