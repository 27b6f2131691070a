"""The ASGI app of the embedded server."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from areal_agent.errors import DataError, InferenceError
from areal_agent.inference.server import control, metrics
from areal_agent.inference.server.chat import chat_completions
from areal_agent.inference.server.completions import completions
from areal_agent.inference.server.errors import as_api_error
from areal_agent.inference.server.state import ServerState
from areal_agent.net.api_error import ApiError, error_response, json_response

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(state: ServerState) -> Starlette:
    """Build the app around a running engine."""
    app = Starlette(
        routes=[
            Route("/v1/completions", _keyed(completions), methods=["POST"]),
            Route("/v1/chat/completions", _keyed(chat_completions), methods=["POST"]),
            Route("/v1/models", _keyed(models)),
            Route("/health", health),
            Route("/metrics", prometheus),
            Route("/control/pause", control.pause, methods=["POST"]),
            Route("/control/resume", control.resume, methods=["POST"]),
            Route("/control/abort", control.abort, methods=["POST"]),
            Route("/control/update_weights", control.update_weights, methods=["POST"]),
            Route("/control/version", control.version),
            Route("/control/stats", control.stats),
            Route("/control/score", control.score, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: _answer_api_error,
            InferenceError: _answer_inference_error,
            DataError: _answer_data_error,
            HTTPException: _answer_http_error,
        },
    )
    app.state.server = state
    return app


def _keyed(endpoint: Endpoint) -> Endpoint:
    """Ask for the data plane's key, if there is one."""

    async def guarded(request: Request) -> Response:
        state: ServerState = request.app.state.server
        if state.api_key is not None:
            control.check_key(request, state.api_key)
        return await endpoint(request)

    return guarded


async def models(request: Request) -> Response:
    """The one model that is served."""
    state: ServerState = request.app.state.server
    entry = {
        "id": state.model,
        "object": "model",
        "created": 0,
        "owned_by": "areal-agent",
        "max_model_len": state.engine.max_model_len,
    }
    return json_response({"object": "list", "data": [entry]})


async def health(request: Request) -> Response:
    """Whether tokens can be had: 200, or 503 once the engine has broken."""
    state: ServerState = request.app.state.server
    facts = {
        "status": "ok",
        "version": state.engine.version,
        "instance_id": state.instance_id,
        "model": state.model,
    }
    fault = state.engine.fault
    if fault is None:
        return json_response(facts)
    return json_response(
        {**facts, "status": "fault", "reason": f"{type(fault).__name__}: {fault}"}, status=503
    )


async def prometheus(request: Request) -> Response:
    """Counters for Prometheus."""
    state: ServerState = request.app.state.server
    return Response(metrics.render(state.engine), media_type="text/plain; version=0.0.4")


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_inference_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, InferenceError)
    return error_response(as_api_error(error))


async def _answer_data_error(request: Request, error: Exception) -> Response:
    return error_response(ApiError(str(error)))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(
        ApiError(f"{error.detail}: {request.method} {request.url.path}", status=error.status_code)
    )
