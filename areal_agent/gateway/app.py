"""The gateway as an ASGI app: one for agents in this process and for those elsewhere."""

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from areal_agent.errors import RewardError
from areal_agent.gateway import anthropic, chat, completions, responses
from areal_agent.gateway.answer import CHUNKS, EVENTS, Answer, Wire, Writer
from areal_agent.gateway.anthropic import read_message
from areal_agent.gateway.anthropic_events import MessageAnswer
from areal_agent.gateway.chat import ChatAnswer, read_chat
from areal_agent.gateway.completions import CompletionAnswer, read_completion
from areal_agent.gateway.exchange import Call, Exchange
from areal_agent.gateway.responses import read_response
from areal_agent.gateway.responses_events import ResponseAnswer
from areal_agent.gateway.rewards import as_reward
from areal_agent.gateway.session import Session, SessionSealed
from areal_agent.gateway.sessions import Sessions
from areal_agent.net.api_error import ApiError, error_response, json_response
from areal_agent.net.body import Body

Endpoint = Callable[[Request, Session], Awaitable[Response]]
Options = TypeVar("Options")
"""How a dialect's answers are written."""


def make_app(sessions: Sessions, *, model: str) -> Starlette:
    """Build the app.

    Args:
        sessions: whose calls are taken.
        model: the policy's name; clients may send any.
    """
    messages = _dialect(read_message, MessageAnswer, anthropic.PREFIX, anthropic.WIRE)
    endpoints: list[tuple[str, Endpoint, str]] = [
        ("/v1/chat/completions", _dialect(read_chat, ChatAnswer, chat.PREFIX, CHUNKS), "POST"),
        (
            "/v1/completions",
            _dialect(read_completion, CompletionAnswer, completions.PREFIX, CHUNKS),
            "POST",
        ),
        (
            "/v1/responses",
            _dialect(read_response, ResponseAnswer, responses.PREFIX, EVENTS),
            "POST",
        ),
        ("/v1/messages", messages, "POST"),
        # Anthropic's SDK adds /v1 itself, also to a base URL that ends in it.
        ("/v1/v1/messages", messages, "POST"),
        ("/v1/models", models, "GET"),
        ("/rl/set_reward", set_reward, "POST"),
    ]
    routes = [
        Route(prefix + path, _in_session(endpoint), methods=[method])
        for prefix in ("", "/s/{path_name}")
        for path, endpoint, method in endpoints
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={ApiError: _answer_api_error, HTTPException: _answer_http_error},
    )
    app.state.sessions = sessions
    app.state.model = model
    return app


def _in_session(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Find the session that the request belongs to, by key or by path."""

    async def found(request: Request) -> Response:
        sessions: Sessions = request.app.state.sessions
        name = request.path_params.get("path_name")
        if name is not None:
            return await endpoint(request, sessions.by_path(name))
        return await endpoint(request, sessions.by_key(_key(request)))

    return found


def _key(request: Request) -> str:
    """The key as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key", "")


def _dialect(
    read: Callable[[Body, Session, str, bool], tuple[Call, Options]],
    writer: Callable[[Session, Exchange, Options], Writer],
    prefix: str,
    wire: Wire,
) -> Endpoint:
    """A route where the policy is called.

    Args:
        read: reads a request, given the policy's name and whether it was sent before.
        writer: writes the answer.
        prefix: the answer's id starts so.
        wire: how errors and events are written.
    """

    async def endpoint(request: Request, session: Session) -> Response:
        body = await Body.read(request)
        if session.is_sealed:
            raise SessionSealed
        call, options = read(body, session, request.app.state.model, _is_retry(request))
        exchange = session.begin(call, prefix=prefix)
        answer = writer(session, exchange, options)
        return Answer(session, exchange, answer, stream=call.stream, wire=wire)

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


def _is_retry(request: Request) -> bool:
    """SDKs generated by Stainless (OpenAI's, Anthropic's) count what they send again."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count) > 0


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    wire = anthropic.WIRE if "/v1/messages" in request.url.path else CHUNKS
    return error_response(error, wire.error(error))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{error.detail}: {request.method} {request.url.path.partition('/v1')[2] or '?'}"
    return await _answer_api_error(request, ApiError(text, status=error.status_code))
