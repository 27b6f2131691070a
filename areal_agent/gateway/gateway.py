"""Opens a session for each episode, and hands out the clients that reach it."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from areal_agent.aio import run_shielded
from areal_agent.data.chat import ChatFormat
from areal_agent.gateway.app import App
from areal_agent.gateway.desk import Desk
from areal_agent.gateway.keys import AdminKey
from areal_agent.gateway.load import Load
from areal_agent.gateway.reachable import Reachable
from areal_agent.gateway.sampling import OVERRULED, Whose
from areal_agent.gateway.session import ABANDONED_SECONDS, Session
from areal_agent.gateway.sessions import Sessions
from areal_agent.inference.base import InferenceEngine
from areal_agent.types import GenerationHyperparameters

if TYPE_CHECKING:  # most of a second to import
    from openai import AsyncOpenAI

logger = logging.getLogger(__name__)


class Gateway(Reachable):
    """Answers agents that speak OpenAI's protocol, in this process and over HTTP.

    Lifetime: an async context manager. Entered means that it answers clients of this process, and
    others as soon as it was asked for a URL; left means that every session is sealed.
    """

    def __init__(
        self,
        chat: ChatFormat,
        *,
        model: str,
        host: str = "127.0.0.1",
        port: int = 0,
        sampling: Whose = "agent",
        abandoned_seconds: float = ABANDONED_SECONDS,
        admin_key: AdminKey | None = None,
        max_requests: int | None = None,
    ) -> None:
        """Wire things up; nothing listens before it is entered.

        Args:
            chat: writes the policy's dialogues.
            model: the policy's name.
            host: to listen on.
            port: to listen on, from the start; 0 lets the system choose, when a URL is asked for.
            sampling: whose `OVERRULED` settings training samples with.
            abandoned_seconds: how long a reply is sampled on after its client has left.
            admin_key: starts sessions from outside; None makes a random one.
            max_requests: most calls under way at once; None means any number.
        """
        self.sessions = Sessions()
        self.desk = Desk(AdminKey() if admin_key is None else admin_key)
        super().__init__(App(self.sessions, self.desk, model=model), host=host, port=port)
        self.model = model
        self._chat = chat
        self._sampling: Whose = sampling
        self._abandoned_seconds = abandoned_seconds
        self._load = Load(max_requests)
        self._has_warned = False

    @asynccontextmanager
    async def session(
        self,
        engine: InferenceEngine,
        gconfig: GenerationHyperparameters,
        *,
        trained: bool,
        on_tool_calls: Callable[[int], None] | None = None,
    ) -> AsyncGenerator[Session]:
        """Open a session; leaving seals it and forgets its key."""
        assert self._group is not None, "the gateway is not open"
        session = Session(
            engine,
            self._chat,
            gconfig,
            self._group,
            trained=trained,
            sampling=self._sampling,
            abandoned_seconds=self._abandoned_seconds,
            load=self._load,
        )
        session.on_tool_calls = on_tool_calls
        self.sessions.add(session)
        try:
            yield session
        finally:
            try:
                await run_shielded(session.seal())
            finally:
                self.sessions.remove(session)
                self._tell_overruled(session)

    def _tell_overruled(self, session: Session) -> None:
        """Warn once: what an agent asks for is not what it gets."""
        if session.counts["overruled"] and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the agent asks for sampling of its own; gateway.sampling is run, so training "
                "samples with gconfig's %s",
                ", ".join(OVERRULED),
            )

    def client(self, session: Session) -> "AsyncOpenAI":
        """Return an OpenAI client of this process for one session."""
        return self.client_with(session.key)

    def base_url(self, session: Session) -> str:
        """Return the URL for clients of one session that can set no key."""
        return f"{self.url}/s/{session.path_name}/v1"
