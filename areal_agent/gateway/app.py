"""The gateway as an ASGI app: one for agents in this process and for those elsewhere."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
from areal_agent.gateway.rewards import as_reward
from areal_agent.gateway.session import Session, SessionSealed
from areal_agent.gateway.sessions import Sessions
from areal_agent.net.api_error import ApiError, error_response, json_response
from areal_agent.net.body import Body

Endpoint = Callable[[Request, Session], Awaitable[Response]]


def make_app(sessions: Sessions, desk: Desk, *, model: str) -> Starlette:
    """Build the app.

    Args:
        sessions: whose calls are taken.
        desk: where agents from elsewhere get theirs.
        model: the policy's name; clients may send any.
    """
    endpoints: list[tuple[str, Endpoint, str]] = [
        ("/v1/chat/completions", _calls(CHAT), "POST"),
        ("/v1/completions", _calls(COMPLETIONS), "POST"),
        ("/v1/responses", _calls(RESPONSES), "POST"),
        ("/v1/messages", _calls(MESSAGES), "POST"),
        # Anthropic's SDK adds /v1 itself, also to a base URL that ends in it.
        ("/v1/v1/messages", _calls(MESSAGES), "POST"),
        ("/v1/models", models, "GET"),
        ("/rl/set_reward", set_reward, "POST"),
        ("/rl/end_session", end_own_session, "POST"),
    ]
    routes = [
        Route("/rl/start_session", start_session, methods=["POST"]),
        Route("/rl/end_session", end_any_session, methods=["POST"]),
        *(
            Route(prefix + path, _in_session(endpoint), methods=[method])
            for prefix in ("", "/s/{path_name}")
            for path, endpoint, method in endpoints
        ),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={ApiError: _answer_api_error, HTTPException: _answer_http_error},
    )
    app.state.sessions = sessions
    app.state.desk = desk
    app.state.model = model
    return app


def _in_session(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Find the session that the request belongs to, by key or by path."""

    async def found(request: Request) -> Response:
        sessions: Sessions = request.app.state.sessions
        name = request.path_params.get("path_name")
        session = sessions.by_key(sent_key(request)) if name is None else sessions.by_path(name)
        session.touch()
        return await endpoint(request, session)

    return found


def _calls(dialect: AnyDialect) -> Endpoint:
    """A route where the policy is called."""

    async def endpoint(request: Request, session: Session) -> Response:
        body = await Body.read(request)
        if session.is_sealed:
            raise SessionSealed
        call, style = dialect.call(body, session, is_retry=_is_retry(request))
        exchange = session.begin(call, prefix=dialect.prefix)
        writer = dialect.writer(session, exchange, request.app.state.model, style)
        return Answer(session, exchange, writer, stream=call.stream, wire=dialect.wire)

    return endpoint


async def models(request: Request, session: Session) -> Response:
    """`GET /v1/models`: the policy."""
    entry = {
        "id": request.app.state.model,
        "object": "model",
        "created": 0,
        "owned_by": "areal-agent",
    }
    return json_response({"object": "list", "data": [entry]})


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


async def end_own_session(request: Request, session: Session) -> Response:
    """`POST /rl/end_session`, with the session's key or path: the agent is done."""
    body = await Body.read(request)
    body.finish()
    desk: Desk = request.app.state.desk
    return await end_session(desk, desk.of(session))


async def end_any_session(request: Request) -> Response:
    """`POST /rl/end_session`, with the session's key, or the admin key and its ``session_id``."""
    desk: Desk = request.app.state.desk
    if not desk.key.is_sent_by(request):
        return await _in_session(end_own_session)(request)
    body = await Body.read(request)
    name = body.string("session_id")
    body.finish()
    return await end_session(desk, desk.named(name))


def _is_retry(request: Request) -> bool:
    """SDKs generated by Stainless (OpenAI's, Anthropic's) count what they send again."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count) > 0


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    wire = MESSAGES.wire if "/v1/messages" in request.url.path else CHUNKS
    return error_response(error, wire.error(error))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{error.detail}: {request.method} {request.url.path.partition('/v1')[2] or '?'}"
    return await _answer_api_error(request, ApiError(text, status=error.status_code))
