"""Agents that live elsewhere: each takes an episode, talks, sets rewards, and ends it."""

import logging
from functools import partial
from typing import Any

from areal_agent.config.inference import GatewayConfig
from areal_agent.gateway.desk import Offer
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.session import Session
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout import context
from areal_agent.rollout.clock import uncounted
from areal_agent.rollout.export import session_rows
from areal_agent.rollout.limits import current_limits
from areal_agent.rollout.live import doing
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters

logger = logging.getLogger(__name__)


class OnlineWorkflow(RolloutWorkflow):
    """Offers each episode at the gateway's desk, and trains on what the agent's session captured.

    An offer is an episode like any other: it is made when the gate admits it, it is one of its
    group, and it is swept when it has become too old.
    """

    def __init__(
        self, gateway: Gateway, gconfig: GenerationHyperparameters, gateway_config: GatewayConfig
    ) -> None:
        """Wire things up.

        Args:
            gateway: entered while episodes run.
            gconfig: what calls are sampled with, where they do not say.
            gateway_config: how long to wait, and how rewards become rows.
        """
        self._gateway = gateway
        self._gconfig = gconfig
        self._config = gateway_config
        self._told = False

    def open(self) -> str:
        """Let agents come; return where they find their sessions, and where the key is."""
        text = self._gateway.desk.open(self._gateway.url)
        if not self._told:
            self._told = True
            logger.info("%s", text)
        return text

    def waits_for(self) -> str:
        """See `RolloutWorkflow.waits_for`."""
        return self._gateway.desk.waits_for()

    async def arun_episode(
        self, engine: InferenceEngine, data: dict[str, Any]
    ) -> list[Trajectory] | None:
        """Offer the episode, wait for its agent, and return its rows.

        Time before an agent takes it is not counted as the episode's.
        """
        self.open()
        episode = context.get()
        facts = {"group_id": episode.prompt_id, "is_eval": episode.is_eval, "data": data}
        with self._gateway.desk.offer(episode.episode_id or "", facts) as offer:
            limits = current_limits()
            async with self._gateway.session(
                engine,
                self._gconfig,
                trained=not episode.is_eval,
                on_tool_calls=limits.asked_for_tools,
            ) as session:
                limits.capture = partial(self._captured, session)
                with uncounted(), doing("an agent from elsewhere", outside=True):
                    await self._gateway.desk.until_taken(
                        offer, session, seconds=self._config.agents_timeout_seconds
                    )
                await self._gateway.desk.until_ended(
                    offer, idle_seconds=self._config.session_idle_seconds
                )
                return self._rows(session, offer)

    def _captured(self, session: Session, reward: float | None) -> list[Trajectory] | None:
        return session_rows(
            session,
            reward,
            discount=self._config.turn_discount,
            style=self._config.export_style,
        )

    def _rows(self, session: Session, offer: Offer) -> list[Trajectory] | None:
        try:
            rows = self._captured(session, None)
        except Exception as error:
            offer.error = f"{type(error).__name__}: {error}"
            raise
        offer.rows = len(rows or ())
        offer.error = None if rows else "the session called no model"
        return rows
