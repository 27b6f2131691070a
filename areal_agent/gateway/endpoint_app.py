"""The ASGI app between agents and an endpoint: each call goes on, each answer comes back."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from areal_agent.aio import task_group
from areal_agent.errors import RewardError
from areal_agent.gateway.answer import ClientGone, until_gone
from areal_agent.gateway.endpoint import Endpoint
from areal_agent.gateway.endpoint_session import EndpointSession, EndpointSessions
from areal_agent.net.api_error import ApiError, error_response, json_response
from areal_agent.net.body import Body
from areal_agent.rewarding import as_reward

_NOT_PASSED_BACK = frozenset(
    {b"connection", b"date", b"keep-alive", b"server", b"set-cookie", b"transfer-encoding"}
)


def make_endpoint_app(
    sessions: EndpointSessions, endpoint: Endpoint, client: Callable[[], httpx.AsyncClient]
) -> Starlette:
    """Build the app.

    Args:
        sessions: whose calls go on.
        endpoint: where to.
        client: what they go through.
    """

    async def pass_on(request: Request) -> Response:
        session = _session(request, sessions)
        body = await request.body()
        path = request.path_params["path"].removeprefix("v1/")  # which Anthropic's SDK adds
        call = endpoint.request(request.method, path, request.headers, body)
        session.called(retry=request.headers.get("x-stainless-retry-count", "0") != "0")
        digest = hashlib.sha256(path.encode() + b"\0" + body).digest()
        return _PassedOn(session, endpoint, client(), call, digest)

    async def set_reward(request: Request) -> Response:
        session = _session(request, sessions)
        body = await Body.read(request)
        value: Any = body.take("reward", math.nan)
        body.finish()
        try:
            reward = as_reward(value)
        except RewardError as error:
            raise ApiError(f"reward: {error}", param="reward") from error
        session.set_reward(reward)
        return json_response({"interaction_id": None, "reward": reward})

    routes = [
        Route(prefix + path, route, methods=methods)
        for prefix in ("", "/s/{key}")
        for path, route, methods in (
            ("/v1/{path:path}", pass_on, ["GET", "POST"]),
            ("/rl/set_reward", set_reward, ["POST"]),
        )
    ]
    return Starlette(routes=routes, exception_handlers={ApiError: _answer_api_error})


def _session(request: Request, sessions: EndpointSessions) -> EndpointSession:
    name = request.path_params.get("key")
    if name is None:
        name = request.headers.get("authorization", "").partition(" ")[2].strip()
    return sessions.find(name or request.headers.get("x-api-key", ""))


class _PassedOn(Response):
    """One call. When its client leaves, the endpoint's work is given up too."""

    def __init__(
        self,
        session: EndpointSession,
        endpoint: Endpoint,
        client: httpx.AsyncClient,
        call: httpx.Request,
        digest: bytes,
    ) -> None:
        super().__init__()
        self._session = session
        self._endpoint = endpoint
        self._client = client
        self._call = call
        self._digest = digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves first."""
        try:
            async with task_group() as group:
                watcher = group.create_task(until_gone(receive))
                await self._exchange(scope, receive, send)
                watcher.cancel()
        except (ClientGone, OSError):
            return

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._client.send(self._call, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            await self._unreachable(error)(scope, receive, send)
            return
        try:
            if answer.is_success:
                await self._stream(answer, send)
            else:
                await (await self._refusal(answer))(scope, receive, send)
        except httpx.HTTPError as error:
            # Half of an answer was sent: the connection ends with it, and the client notices.
            self._session.failed(self._digest, 502, f"broke off: {error!r}")
        finally:
            await answer.aclose()

    async def _stream(self, answer: httpx.Response, send: Send) -> None:
        self._session.answered(self._digest)  # some clients read no further than they need
        headers = _headers(answer)
        await send(
            {"type": "http.response.start", "status": answer.status_code, "headers": headers}
        )
        async for chunk in answer.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refusal(self, answer: httpx.Response) -> Response:
        """The endpoint's own words, with what they say of when to try again."""
        content = self._endpoint.hidden(await answer.aread())
        self._session.failed(self._digest, answer.status_code, content.decode(errors="replace"))
        response = Response(content, answer.status_code)
        own = {b"content-length", b"content-encoding"}
        response.raw_headers += [(k, v) for k, v in _headers(answer) if k not in own]
        return response

    def _unreachable(self, error: Exception) -> Response:
        late = isinstance(error, httpx.ReadTimeout)
        text = (
            f"the endpoint said nothing for {self._endpoint.request_seconds:g} s "
            "(rollout.request_timeout_seconds)"
            if late
            else f"the endpoint cannot be reached: {type(error).__name__}: {error}"
        )
        status = 504 if late else 502
        self._session.failed(self._digest, status, text)
        return error_response(ApiError(text, status=status, type="server_error"))


def _headers(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    raw = [(name.lower(), value) for name, value in answer.headers.raw]
    return [(name, value) for name, value in raw if name not in _NOT_PASSED_BACK]


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)
