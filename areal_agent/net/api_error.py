"""Errors as answers: OpenAI's shape, for every route."""

from typing import Any

import orjson
from starlette.responses import Response


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        type: str = "invalid_request_error",
        code: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_seconds = retry_seconds
        self.body = {"error": {"message": message, "type": type, "param": param, "code": code}}


def json_response(body: Any, status: int = 200) -> Response:
    """Answer with JSON bytes."""
    return Response(orjson.dumps(body), status, media_type="application/json")


def error_response(error: ApiError, body: Any = None) -> Response:
    """Answer with an error; `body` says it in the shape of another protocol than OpenAI's."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.retry_seconds is not None:
        headers["Retry-After"] = str(error.retry_seconds)
    return Response(orjson.dumps(body or error.body), error.status, headers, "application/json")
