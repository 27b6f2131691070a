"""The sampling part of a request, the same for completions and chat."""

import random
from dataclasses import dataclass, replace

from areal_agent.inference.engine.engine import Engine
from areal_agent.inference.engine.request import GenerateRequest, SamplingParams
from areal_agent.inference.engine.sampler import derive_seed
from areal_agent.inference.engine.ticket import Ticket
from areal_agent.inference.server.state import ServerState
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body, include_usage

MAX_CHOICES = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What a client wants back, and how it is sampled."""

    params: SamplingParams
    """Without a seed; `submit` gives each choice its own."""
    seed: int
    n: int
    stream: bool
    stream_interval: float
    """Seconds between events of a stream, at least."""
    include_usage: bool
    return_token_ids: bool
    return_weight_versions: bool
    request_id: str
    cache_key: str | None

    def submit(self, prompt: list[int], engine: Engine) -> list[Ticket]:
        """Ask the engine for each choice, with seeds of their own."""
        return [
            engine.submit(
                GenerateRequest(
                    id=self.request_id,
                    prompt=prompt,
                    params=replace(self.params, seed=derive_seed(self.seed, i)),
                    cache_key=self.cache_key,
                ),
                stream=self.stream,
                interval_seconds=self.stream_interval,
            )
            for i in range(self.n)
        ]


def read_options(body: Body, state: ServerState, *, new_id: str, max_tokens: int) -> Options:
    """Take the sampling fields; the caller has taken its own and has read `max_tokens`."""
    check_model(body, state)
    vocab = state.engine.vocab_size
    stop_ids = frozenset(body.ids("stop_token_ids", vocab))
    if not body.boolean("ignore_eos"):
        stop_ids |= state.eos_ids
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.integer("min_tokens", 0, 0),
        temperature=body.number("temperature", 1.0, 0.0, 100.0),
        top_p=body.number("top_p", 1.0, 0.0, 1.0),
        top_k=max(0, body.integer("top_k", 0, -1)),
        frequency_penalty=body.number("frequency_penalty", 0.0, -2.0, 2.0),
        stop=body.strings("stop"),
        stop_ids=stop_ids,
    )
    _check(params, vocab)
    with_usage = include_usage(body)
    if body.has("stream_interval") and body.fields.get("stream") is not True:
        raise ApiError("stream_interval: only with stream", param="stream_interval")
    interval = body.number("stream_interval", 0.0, 0.0, 3600.0)
    return Options(
        params=params,
        seed=body.integer("seed", random.getrandbits(62), 0),
        n=body.integer("n", 1, 1, MAX_CHOICES),
        stream=body.boolean("stream"),
        stream_interval=interval,
        include_usage=with_usage,
        return_token_ids=body.boolean("return_token_ids"),
        return_weight_versions=body.boolean("return_weight_versions"),
        request_id=body.string("request_id") or new_id,
        cache_key=body.string("cache_key"),
    )


def check_model(body: Body, state: ServerState) -> None:
    """Refuse the name of a model that is not served here."""
    name = body.string("model")
    if name is not None and name != state.model:
        raise ApiError(
            f"model: expected {state.model!r}, the one that is served here, got {name!r}",
            status=404,
            param="model",
            code="model_not_found",
        )


def check_prompt(prompt: list[int], state: ServerState, *, param: str = "prompt") -> list[int]:
    """Refuse a prompt that leaves no room for a reply."""
    most = state.engine.max_model_len - 1
    if not prompt:
        raise ApiError(f"{param}: expected at least one token, got none", param=param)
    if len(prompt) > most:
        raise ApiError(
            f"{param}: expected at most {most} tokens (the context of {most + 1} less one for the "
            f"reply), got {len(prompt)}: shorten it",
            param=param,
            code="context_length_exceeded",
        )
    return prompt


def _check(params: SamplingParams, vocab_size: int) -> None:
    if params.top_p <= 0:
        raise ApiError("top_p: expected a number above 0, got 0", param="top_p")
    if params.min_tokens > params.max_tokens:
        raise ApiError(
            f"min_tokens: expected at most max_tokens ({params.max_tokens}), "
            f"got {params.min_tokens}",
            param="min_tokens",
        )
    if params.min_tokens and len(params.stop_ids) >= vocab_size:
        raise ApiError(
            "stop_token_ids: expected fewer ids than the vocabulary has, so that min_tokens can "
            f"be met, got {len(params.stop_ids)}",
            param="stop_token_ids",
        )
    if 0 < params.temperature < 1e-3:
        raise ApiError(
            f"temperature: expected 0 or at least 0.001, got {params.temperature}",
            param="temperature",
        )
