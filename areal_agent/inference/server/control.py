"""Control routes, guarded by a key: pause, resume, abort, new weights, version, stats, score."""

import hmac
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from areal_agent.config.inference import WeightUpdateMode
from areal_agent.inference.server.state import ServerState
from areal_agent.net.api_error import ApiError, json_response
from areal_agent.net.body import Body, check_ids

_MODES: dict[str, WeightUpdateMode] = {
    "keep": "keep",
    "recompute": "recompute",
    "abort": "abort",
}


def check_key(request: Request, key: str) -> None:
    """Let only holders of the key pass; compared in constant time.

    Raises:
        ApiError: 401 without a key, 403 with a wrong one.
    """
    header = request.headers.get("authorization", "")
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer" or not given:
        raise ApiError(
            "expected the header 'Authorization: Bearer <key>'",
            status=401,
            type="authentication_error",
            code="missing_api_key",
        )
    if not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise ApiError(
            "the key is not the one of this server",
            status=403,
            type="permission_error",
            code="invalid_api_key",
        )


def _state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    check_key(request, state.control_key)
    return state


async def pause(request: Request) -> Response:
    """`{"mode": "abort" | "keep"}`: stop decoding."""
    state = _state(request)
    body = await Body.read(request)
    mode = body.string("mode", ("abort", "keep")) or "keep"
    body.finish()
    await state.engine.pause("abort" if mode == "abort" else "keep")
    return json_response({"paused": True, "version": state.engine.version})


async def resume(request: Request) -> Response:
    """Go on decoding."""
    state = _state(request)
    (await Body.read(request)).finish()
    await state.engine.resume()
    return json_response({"paused": False, "version": state.engine.version})


async def abort(request: Request) -> Response:
    """`{"request_ids": [...] | null}`: end requests with what they have."""
    state = _state(request)
    body = await Body.read(request)
    ids = list(body.strings("request_ids")) if body.has("request_ids") else None
    body.finish()
    return json_response({"aborted": await state.engine.abort(ids)})


async def update_weights(request: Request) -> Response:
    """`{"path": str, "version": int, "mode": ..., "allow_older": bool}`: serve new weights."""
    state = _state(request)
    body = await Body.read(request)
    path = body.string("path")
    if path is None or not body.has("version"):
        name = "path" if path is None else "version"
        raise ApiError(f"{name}: expected a value, got nothing", param=name)
    version = body.integer("version", 0, 0)
    named = body.string("mode", tuple(_MODES))
    mode = _MODES[named] if named else None
    allow_older = body.boolean("allow_older")
    body.finish()
    served = await state.engine.update_weights(Path(path), version, mode, allow_older=allow_older)
    return json_response({"version": served})


async def version(request: Request) -> Response:
    """Version of the weights that serve."""
    return json_response({"version": _state(request).engine.version})


async def stats(request: Request) -> Response:
    """Counters and gauges, and recent busy intervals as pairs of `time.time()`.

    ``?spans=0`` leaves the intervals out: the rest is small enough to be asked for often.
    """
    engine = _state(request).engine
    if request.query_params.get("spans") == "0":
        return json_response(engine.stats())
    return json_response({**engine.stats(), "busy_spans": engine.busy_spans()})


async def score(request: Request) -> Response:
    """`{"rows": [[ids]], "temperature": float}`: logprobs under the current weights."""
    state = _state(request)
    body = await Body.read(request)
    given: Any = body.take("rows", [])
    if not isinstance(given, list):
        raise ApiError("rows: expected a list of lists of token ids", param="rows")
    rows = [check_ids("rows", row, state.engine.vocab_size) for row in given]
    if not all(rows):
        raise ApiError("rows: expected at least one token id in each row", param="rows")
    longest = max((len(row) for row in rows), default=0)
    if longest > state.engine.max_model_len:
        raise ApiError(
            f"rows: expected at most {state.engine.max_model_len} tokens a row, got {longest}",
            param="rows",
            code="context_length_exceeded",
        )
    temperature = body.number("temperature", 1.0, 1e-3, 100.0)
    body.finish()
    logprobs, scored_by = await state.engine.score(rows, temperature)
    return json_response({"logprobs": logprobs, "version": scored_by})
