"""Stands where the gateway stands in training, and passes calls on to an endpoint."""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Self

from areal_agent.gateway.endpoint import Endpoint
from areal_agent.gateway.endpoint_app import make_endpoint_app
from areal_agent.gateway.endpoint_session import EndpointSession, EndpointSessions
from areal_agent.gateway.reachable import Reachable
from areal_agent.net.clients import HttpClients

if TYPE_CHECKING:  # most of a second to import
    from openai import AsyncOpenAI


class EndpointGateway(Reachable):
    """Hands agents clients that reach an endpoint; captures no tokens.

    Lifetime: see `Reachable`. Entering fails where every episode would.
    """

    def __init__(
        self, endpoint: Endpoint, clients: HttpClients, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """Wire things up; nothing is sent before it is entered.

        Args:
            endpoint: where calls go.
            clients: what they go through; open while this is.
            host: to listen on.
            port: to listen on; see `Reachable`.
        """
        self.endpoint = endpoint
        self.sessions = EndpointSessions()
        self._clients = clients
        app = make_endpoint_app(self.sessions, endpoint, clients.external)
        super().__init__(app, host=host, port=port)

    def session(self) -> AbstractAsyncContextManager[EndpointSession]:
        """Open a session; leaving forgets its key."""
        return self.sessions.open()

    def client(self, session: EndpointSession) -> "AsyncOpenAI":
        """Return an OpenAI client of this process for one session."""
        return self.client_with(session.key)

    def base_url(self, session: EndpointSession) -> str:
        """Return the URL for clients of one session that can set no key."""
        return f"{self.url}/s/{session.key}/v1"

    async def __aenter__(self) -> Self:
        """Ask the endpoint whether it is there, and open.

        Raises:
            ServerError: nobody answers there.
            RequestError: the key is refused.
        """
        await self.endpoint.check(self._clients.external())
        return await super().__aenter__()
