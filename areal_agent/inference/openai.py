"""The wire format: OpenAI's completions with token ids in and out.

The embedded server speaks it, and so do OpenAI-compatible servers that return token ids when they
are asked to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from areal_agent.errors import ServerError
from areal_agent.net.internal import Answer
from areal_agent.types import GenerationHyperparameters, Scores, StopReason, TokenSink

COMPLETIONS = "/v1/completions"

RETRIED_STATUSES = frozenset({408, 425, 429})
"""Client errors that may pass: the only 4xx that are tried again."""

_STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "abort": "abort",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """What one request to a server gave."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    stop_reason: StopReason


def completion_body(
    prompt: Sequence[int],
    gconfig: GenerationHyperparameters,
    *,
    model: str,
    request_id: str,
    cache_key: str,
    stream_interval: float | None = None,
) -> bytes:
    """Return the body of a completions request for token ids, logprobs and versions.

    With a `stream_interval` the answer is streamed, its events so many seconds apart at least.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": gconfig.max_new_tokens,
        "temperature": gconfig.effective_temperature,
        "top_p": gconfig.top_p,
        "n": 1,
        "logprobs": 0,
        "return_token_ids": True,
        "return_weight_versions": True,
        "request_id": request_id,
        "cache_key": cache_key,
    }
    optional: dict[str, Any] = {
        "min_tokens": gconfig.min_new_tokens,
        "top_k": gconfig.top_k,
        "stop": list(gconfig.stop),
        "stop_token_ids": list(gconfig.stop_token_ids),
        "ignore_eos": gconfig.ignore_eos,
        "frequency_penalty": gconfig.frequency_penalty,
    }
    body.update({name: value for name, value in optional.items() if value})
    if gconfig.seed is not None:
        body["seed"] = gconfig.seed
    if stream_interval is not None:
        body["stream"] = True
        if stream_interval:
            body["stream_interval"] = stream_interval
    return orjson.dumps(body)


def read_completion(content: bytes, *, max_new_tokens: int, version: int) -> Segment:
    """Read a completions answer.

    `version` stamps the tokens of a server that does not report versions: the one known before the
    request was sent, so that no token looks younger than it is.

    Raises:
        ServerError: the answer is not what was asked for.
    """
    try:
        choice = cast("dict[str, Any]", orjson.loads(content)["choices"][0])
        ids = cast("list[int]", choice["token_ids"])
        logprobs = cast("list[float]", choice["logprobs"]["token_logprobs"]) if ids else []
        versions = cast("list[int]", choice.get("weight_versions") or [version] * len(ids))
        stop_reason = _STOP_REASONS[choice["finish_reason"]]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise ServerError(
            "expected a completion with token_ids, token_logprobs and a known finish_reason, got "
            f"{content[:200]!r} ({type(error).__name__}: {error})"
        ) from error
    if not len(ids) == len(logprobs) == len(versions) or len(ids) > max_new_tokens:
        raise ServerError(
            f"expected at most {max_new_tokens} tokens with a logprob and a version each, got "
            f"{len(ids)} tokens, {len(logprobs)} logprobs, {len(versions)} versions"
        )
    return Segment(ids, logprobs, versions, stop_reason)


def read_scores(content: bytes, lengths: Sequence[int]) -> Scores:
    """Read a score answer for rows of these lengths.

    Raises:
        ServerError: the answer is not what was asked for.
    """
    try:
        answer = cast("dict[str, Any]", orjson.loads(content))
        logprobs = [[float(value) for value in row] for row in answer["logprobs"]]
        version = int(answer["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(
            f"expected logprobs and a version from score, got {content[:200]!r} "
            f"({type(error).__name__}: {error})"
        ) from error
    if [len(row) for row in logprobs] != list(lengths):
        raise ServerError(
            f"expected a logprob for each token of rows of {list(lengths)}, got rows of "
            f"{[len(row) for row in logprobs]}"
        )
    return Scores(logprobs, version)


class CompletionStream:
    """Reads a streamed completions answer line by line; tokens go to `on_tokens` as they come."""

    def __init__(self, on_tokens: TokenSink | None, *, max_new_tokens: int, version: int) -> None:
        self._on_tokens = on_tokens
        self._max_new_tokens = max_new_tokens
        self._version = version
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._stop_reason: StopReason | None = None

    def line(self, line: bytes) -> bool:
        """Take one line of server-sent events; returns whether a token has come by now.

        Raises:
            ServerError: it is not what was asked for, or it tells of an error.
        """
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return self.heard
        try:
            event = cast("dict[str, Any]", orjson.loads(data))
            if "error" in event:
                raise ServerError(f"the server broke off: {event['error']['message']}")
            if not event["choices"]:
                return self.heard
            choice = cast("dict[str, Any]", event["choices"][0])
            ids = cast("list[int]", choice["token_ids"])
            logprobs = cast("list[float]", choice["logprobs"]["token_logprobs"]) if ids else []
            versions = cast(
                "list[int]", choice.get("weight_versions") or [self._version] * len(ids)
            )
            reason = choice["finish_reason"]
            stop_reason = None if reason is None else _STOP_REASONS[reason]
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ServerError(
                "expected an event with token_ids and token_logprobs, got "
                f"{line[:200]!r} ({type(error).__name__}: {error})"
            ) from error
        if not len(ids) == len(logprobs) == len(versions):
            raise ServerError(
                f"expected a logprob and a version for each token, got {len(ids)} tokens, "
                f"{len(logprobs)} logprobs, {len(versions)} versions"
            )
        if len(self._ids) + len(ids) > self._max_new_tokens:
            raise ServerError(f"expected at most {self._max_new_tokens} tokens, got more")
        self._stop_reason = stop_reason or self._stop_reason
        self._ids += ids
        self._logprobs += logprobs
        self._versions += versions
        if ids and self._on_tokens is not None:
            self._on_tokens(ids, logprobs, versions)
        return self.heard

    @property
    def heard(self) -> bool:
        """Whether a token has come."""
        return bool(self._ids)

    def segment(self) -> Segment:
        """What has come; one that was broken off counts as interrupted."""
        reason = self._stop_reason or "abort"
        return Segment(self._ids, self._logprobs, self._versions, reason)


def error_text(answer: Answer) -> str:
    """Return the server's own words from an error answer, in OpenAI's shape or not."""
    try:
        error = cast("dict[str, Any]", orjson.loads(answer.content))["error"]
        message = cast("object", error["message"] if isinstance(error, dict) else error)
        return str(message)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return answer.text[:500] or "nothing"
