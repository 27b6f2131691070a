"""Routes by which an agent that lives elsewhere starts an episode and ends it."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from areal_agent.gateway.desk import Desk, Offer
from areal_agent.net.api_error import json_response
from areal_agent.net.body import Body


async def start_session(request: Request, desk: Desk) -> Response:
    """`POST /rl/start_session`, with the admin key: take the session that waits for longest."""
    desk.key.check(request)
    body = await Body.read(request)
    body.finish()
    offer = desk.take()
    session = offer.session
    assert session is not None
    told = {
        "session_id": offer.name,
        "api_key": session.key,
        "base_url": f"{request.base_url}s/{session.path_name}/v1",
        **offer.facts,
    }
    # A row may hold what is no JSON: then it is told as text.
    return Response(
        orjson.dumps(
            told, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        ),
        media_type="application/json",
    )


async def end_session(desk: Desk, offer: Offer) -> Response:
    """End a session; the answer comes when nothing can be added to it any more."""
    await desk.end(offer)
    assert offer.session is not None
    told: dict[str, Any] = {
        "session_id": offer.name,
        "turns": len(offer.session.delivered_turns()),
        "rows": offer.rows,
        "error": offer.error,
    }
    return json_response(told)
