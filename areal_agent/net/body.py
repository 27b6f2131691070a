"""Read the JSON body of a request field by field; what nobody reads is refused."""

from typing import Any, cast

import orjson
from starlette.requests import ClientDisconnect, Request

from areal_agent.net.api_error import ApiError

MAX_BODY_BYTES = 64 << 20
LONG_TEXT_BYTES = 1 << 16
"""Text in larger bodies is tokenised in a thread: the loop would stand still for too long."""

NEUTRAL: dict[str, Any] = {
    "echo": False,
    "best_of": 1,
    "suffix": "",
    "logit_bias": {},
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
}
"""Parameters that are accepted only at the value that means nothing."""


class Body:
    """A JSON object whose fields are taken one by one. `null` means absent.

    Every method raises `ApiError` (400, naming the parameter) for a value it cannot take.
    """

    def __init__(self, fields: dict[str, Any], *, n_bytes: int = 0) -> None:
        self.n_bytes = n_bytes
        """Size of the body as it was sent."""
        self._fields = {name: value for name, value in fields.items() if value is not None}

    @property
    def fields(self) -> dict[str, Any]:
        """What has not been taken yet."""
        return self._fields

    @classmethod
    async def read(cls, request: Request) -> "Body":
        """Parse a request's body."""
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
            size += len(chunks[-1])
            if size > MAX_BODY_BYTES:
                raise ApiError(f"expected a body of at most {MAX_BODY_BYTES} bytes", status=413)
        try:
            fields: object = orjson.loads(b"".join(chunks) or b"{}")
        except orjson.JSONDecodeError as error:
            raise ApiError(f"expected JSON in the body: {error}") from error
        if not isinstance(fields, dict):
            raise ApiError(f"expected a JSON object in the body, got {type(fields).__name__}")
        return cls(cast("dict[str, Any]", fields), n_bytes=size)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field as it is."""
        return self._fields.pop(name, default)

    def has(self, name: str) -> bool:
        return name in self._fields

    def integer(self, name: str, default: int, low: int, high: int = (1 << 63) - 1) -> int:
        value = self.take(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _wrong(name, f"an integer from {low} to {high}", value)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _wrong(name, "a number", value)
        if not low <= value <= high:
            raise _wrong(name, f"a number from {low} to {high}", value)
        return float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
        return value

    def string(self, name: str, choices: tuple[str, ...] = ()) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "a string", value)
        if value is not None and choices and value not in choices:
            raise _wrong(name, f"one of {list(choices)}", value)
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """Take a string or a list of non-empty strings."""
        value = self.take(name, [])
        found: list[Any] = [value] if isinstance(value, str) else value
        if not isinstance(value, str | list) or not all(isinstance(s, str) and s for s in found):
            raise _wrong(name, "a string or a list of strings, none empty", value)
        return tuple(found)

    def ids(self, name: str, vocab_size: int) -> list[int]:
        """Take a list of token ids."""
        return check_ids(name, self.take(name, []), vocab_size)

    def finish(self) -> None:
        """Refuse what was not taken, except parameters at a value that means nothing."""
        for name, value in self._fields.items():
            if name not in NEUTRAL:
                raise ApiError(
                    f"the parameter {name!r} is not supported by this server: leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
            if value != NEUTRAL[name]:
                raise _wrong(name, f"{NEUTRAL[name]!r}, the only supported value", value)


def include_usage(body: Body) -> bool:
    """Take ``stream_options``, which OpenAI's completions have: is a last event to tell the usage?

    Raises:
        ApiError: 400, it is no such object, or the answer is not streamed.
    """
    options = body.take("stream_options")
    if options is None:
        return False
    if body.fields.get("stream") is not True or not isinstance(options, dict):
        raise ApiError("stream_options: only with stream, and as an object", param="stream_options")
    inner = Body(cast("dict[str, Any]", options))
    wanted = inner.boolean("include_usage")
    inner.finish()
    return wanted


def check_ids(name: str, value: Any, vocab_size: int) -> list[int]:
    """Return a list of token ids, or refuse it."""
    if not isinstance(value, list):
        raise _wrong(name, "a list of token ids", value)
    ids = cast("list[Any]", value)
    if not all(type(i) is int for i in ids):
        raise _wrong(name, "a list of token ids", next(i for i in ids if type(i) is not int))
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise _wrong(name, f"token ids from 0 to {vocab_size - 1}", bad)
    return ids


def _wrong(name: str, expected: str, got: Any) -> ApiError:
    shown = repr(got)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ApiError(f"{name}: expected {expected}, got {shown}", param=name, code="invalid_value")
