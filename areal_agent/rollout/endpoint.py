"""Agents evaluated at an endpoint of others: a reward an episode, and no tokens."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_agent.errors import ConfigError, RewardError
from areal_agent.gateway.endpoint_gateway import EndpointGateway
from areal_agent.gateway.endpoint_session import EndpointSession
from areal_agent.inference.base import InferenceEngine
from areal_agent.rewarding import as_reward
from areal_agent.rollout.adapters import Agent, asked_for
from areal_agent.rollout.limits import stoppable
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.types import Score


class EndpointWorkflow(RolloutWorkflow):
    """Gives each episode of an agent clients that reach the endpoint; for evaluation only."""

    def __init__(self, agent: Agent, gateway: EndpointGateway) -> None:
        """Check the agent.

        Raises:
            ConfigError: it asks for the engine, which there is not.
        """
        parameters = inspect.signature(agent.run).parameters.values()
        if any(p.name == "engine" and p.default is p.empty for p in parameters):
            raise ConfigError(
                "run() asks for `engine`, but inference.type is openai: an endpoint gives no "
                "token ids; ask for client, or for base_url and api_key"
            )
        self.agent = agent
        self._gateway = gateway
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._wants = None if takes_all else {p.name for p in parameters}

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Score | None:
        """Run one episode; None when the agent called no model."""
        async with self._gateway.session() as session:
            try:
                value = await stoppable(self.agent.run(data, **self._extra(session)))
            except Exception as error:
                if session.failure is not None:
                    raise session.failure from error
                raise
        if session.failure is not None:
            raise session.failure
        if not session.counts["calls"]:
            return None
        return Score(
            _reward(value, session),
            truncated=session.is_truncated,
            metrics={name: float(count) for name, count in session.counts.items()},
        )

    def _extra(self, session: EndpointSession) -> dict[str, Any]:
        gateway = self._gateway
        offered: dict[str, Callable[[], Any]] = {
            "client": lambda: gateway.client(session),
            "base_url": lambda: gateway.base_url(session),
            "api_key": lambda: session.key,
            "http_client": lambda: gateway.http_client,
            "httpx2_client": lambda: gateway.httpx2_client,
        }
        return asked_for(offered, self._wants)


def _reward(value: object, session: EndpointSession) -> float:
    if value is None:
        if session.reward is None:
            raise RewardError(
                "the agent returned None and set no reward: return a number from run(), or post "
                "one to /rl/set_reward"
            )
        return session.reward
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes):
        raise RewardError(
            f"expected one number for the episode, got {value!r:.80}: rewards of single turns "
            "need the captured conversation, which there is not with inference.type openai"
        )
    return as_reward(value)
