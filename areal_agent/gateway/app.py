"""The gateway as an ASGI app: one for agents in this process and for those elsewhere."""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from areal_agent.errors import RewardError
from areal_agent.gateway.answer import CHUNKS, Answer
from areal_agent.gateway.anthropic import MESSAGES
from areal_agent.gateway.chat import CHAT
from areal_agent.gateway.completions import COMPLETIONS
from areal_agent.gateway.desk import Desk
from areal_agent.gateway.dialect import AnyDialect
from areal_agent.gateway.keys import sent_key
from areal_agent.gateway.online import end_session, start_session
from areal_agent.gateway.responses import RESPONSES
from areal_agent.gateway.session import Session, SessionSealed
from areal_agent.gateway.sessions import Sessions
from areal_agent.net.api_error import ApiError, error_response, json_response
from areal_agent.net.body import Body
from areal_agent.rewarding import as_reward

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request, Session], Awaitable[Response]]


class App:
    """Finds the route and the session of each request.

    Paths are looked up: a router that matches them costs as much as reading the request.
    """

    def __init__(self, sessions: Sessions, desk: Desk, *, model: str) -> None:
        """Wire things up.

        Args:
            sessions: whose calls are taken.
            desk: where agents from elsewhere get theirs.
            model: the policy's name; clients may send any.
        """
        self._sessions = sessions
        self._desk = desk
        self._model = model
        self._routes: dict[str, tuple[str, Endpoint]] = {
            "/v1/chat/completions": ("POST", self._calls(CHAT)),
            "/v1/completions": ("POST", self._calls(COMPLETIONS)),
            "/v1/responses": ("POST", self._calls(RESPONSES)),
            "/v1/messages": ("POST", self._calls(MESSAGES)),
            # Anthropic's SDK adds /v1 itself, also to a base URL that ends in it.
            "/v1/v1/messages": ("POST", self._calls(MESSAGES)),
            "/v1/models": ("GET", self._models),
            "/rl/set_reward": ("POST", set_reward),
            "/rl/end_session": ("POST", self._end_own),
        }
        """Method and answer of each path in a session."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        path: str = scope["path"]
        try:
            response = await self._answer(request, path)
        except ClientDisconnect:
            return
        except Exception as error:
            if not isinstance(error, ApiError):
                logger.exception("a request could not be answered")
                text = f"the gateway failed, its log says where: {type(error).__name__}"
                error = ApiError(text, status=500, type="server_error")
            wire = MESSAGES.wire if "/v1/messages" in path else CHUNKS
            response = error_response(error, wire.error(error))
        await response(scope, receive, send)

    async def _answer(self, request: Request, path: str) -> Response:
        name = None
        if path.startswith("/s/"):
            name, _, path = path[3:].partition("/")
            path = f"/{path}"
        elif path == "/rl/start_session":
            _check_method(request, "POST", path)
            return await start_session(request, self._desk)
        elif path == "/rl/end_session" and self._desk.key.is_sent_by(request):
            _check_method(request, "POST", path)
            return await self._end_any(request)
        if path not in self._routes:
            raise ApiError(f"Not Found: {request.method} {path}", status=404)
        method, endpoint = self._routes[path]
        _check_method(request, method, path)
        sessions = self._sessions
        session = sessions.by_key(sent_key(request)) if name is None else sessions.by_path(name)
        session.touch()
        return await endpoint(request, session)

    def _calls(self, dialect: AnyDialect) -> Endpoint:
        """A route where the policy is called."""

        async def endpoint(request: Request, session: Session) -> Response:
            body = await Body.read(request)
            if session.is_sealed:
                raise SessionSealed
            call, style = dialect.call(body, session, is_retry=_is_retry(request))
            exchange = session.begin(call, prefix=dialect.prefix)
            writer = dialect.writer(session, exchange, self._model, style)
            return Answer(session, exchange, writer, stream=call.stream, wire=dialect.wire)

        return endpoint

    async def _models(self, request: Request, session: Session) -> Response:
        """`GET /v1/models`: the policy."""
        entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "areal-agent"}
        return json_response({"object": "list", "data": [entry]})

    async def _end_own(self, request: Request, session: Session) -> Response:
        """`POST /rl/end_session`, with the session's key or path: the agent is done."""
        body = await Body.read(request)
        body.finish()
        return await end_session(self._desk, self._desk.of(session))

    async def _end_any(self, request: Request) -> Response:
        """`POST /rl/end_session`, with the admin key and the session's ``session_id``."""
        body = await Body.read(request)
        name = body.string("session_id")
        body.finish()
        return await end_session(self._desk, self._desk.named(name))


async def set_reward(request: Request, session: Session) -> Response:
    """`POST /rl/set_reward` `{"reward": number, "interaction_id": str | null}`.

    Without an id the last turn gets the reward.
    """
    body = await Body.read(request)
    name = body.string("interaction_id")
    value: Any = body.take("reward", math.nan)
    body.finish()
    try:
        reward = as_reward(value)
    except RewardError as error:
        raise ApiError(f"reward: {error}", param="reward") from error
    return json_response({"interaction_id": session.set_reward(reward, name), "reward": reward})


def _check_method(request: Request, method: str, path: str) -> None:
    if request.method not in (method, "HEAD" if method == "GET" else method):
        raise ApiError(f"Method Not Allowed: {request.method} {path}", status=405)


def _is_retry(request: Request) -> bool:
    """SDKs generated by Stainless (OpenAI's, Anthropic's) count what they send again."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count) > 0
