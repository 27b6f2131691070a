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
from areal_agent.types import GenerationHyperparameters, StopReason

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
    max_new_tokens: int,
    min_new_tokens: int,
    seed: int | None,
    request_id: str,
    cache_key: str,
) -> bytes:
    """Return the body of a completions request for token ids, logprobs and versions."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_new_tokens,
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
        "min_tokens": min_new_tokens,
        "top_k": gconfig.top_k,
        "stop": list(gconfig.stop),
        "stop_token_ids": list(gconfig.stop_token_ids),
        "ignore_eos": gconfig.ignore_eos,
        "frequency_penalty": gconfig.frequency_penalty,
    }
    body.update({name: value for name, value in optional.items() if value})
    if seed is not None:
        body["seed"] = seed
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


def error_text(answer: Answer) -> str:
    """Return the server's own words from an error answer, in OpenAI's shape or not."""
    try:
        error = cast("dict[str, Any]", orjson.loads(answer.content))["error"]
        message = cast("object", error["message"] if isinstance(error, dict) else error)
        return str(message)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return answer.text[:500] or "nothing"
