"""Sampling parameters of a request: honoured, or refused by name. Never taken and ignored."""

from collections.abc import Callable
from typing import Literal

from areal_agent.errors import ConfigError
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body
from areal_agent.types import GenerationHyperparameters

MAX_CHOICES = 128

Whose = Literal["agent", "run"]
"""Whose `OVERRULED` settings a call that may be trained on is sampled with."""

OVERRULED = ("temperature", "top_p", "top_k", "frequency_penalty")
"""What makes the distribution that tokens are drawn from."""

_SETTINGS: dict[str, tuple[str, Callable[[Body], object]]] = {
    "top_p": ("top_p", lambda body: body.number("top_p", 1.0, 1e-6, 1.0)),
    "top_k": ("top_k", lambda body: max(0, body.integer("top_k", 0, -1))),
    "frequency_penalty": (
        "frequency_penalty",
        lambda body: body.number("frequency_penalty", 0.0, -2.0, 2.0),
    ),
    "min_tokens": ("min_new_tokens", lambda body: body.integer("min_tokens", 0, 0)),
    "ignore_eos": ("ignore_eos", lambda body: body.boolean("ignore_eos")),
    "stop_token_ids": (
        "stop_token_ids",
        lambda body: tuple(body.ids("stop_token_ids", vocab_size=1 << 31)),
    ),
    "seed": ("seed", lambda body: body.integer("seed", 0, 0)),
}
"""How a parameter is read, and which setting it stands for, where all dialects name it alike."""


def read_sampling(
    body: Body,
    base: GenerationHyperparameters,
    *,
    max_tokens: tuple[str, ...],
    stop: str = "stop",
    max_choices: int = 1,
) -> GenerationHyperparameters:
    """Return what a request asks to be sampled with: its own parameters over those of the run.

    Args:
        body: the request; its sampling fields are taken.
        base: the run's settings.
        max_tokens: the names under which this dialect bounds the reply, at most one of them given.
        stop: this dialect's name of the stop strings.
        max_choices: most replies that this dialect can write.

    Raises:
        ApiError: 400, naming the parameter.
    """
    changes = {key: read(body) for name, (key, read) in _SETTINGS.items() if body.has(name)}
    changes["n_samples"] = body.integer("n", 1, 1, max_choices)
    if body.has("temperature"):
        temperature = body.number("temperature", 1.0, 0.0, 100.0)
        changes["greedy"] = temperature == 0.0
        if temperature > 0:
            changes["temperature"] = temperature
    if body.has(stop):
        changes["stop"] = body.strings(stop)
    given = [name for name in max_tokens if body.has(name)]
    if len(given) > 1:
        raise ApiError(f"{given[0]}: expected either it or {given[1]}, got both", param=given[0])
    if given:
        changes["max_new_tokens"] = body.integer(given[0], 1, 1)
    if all(getattr(base, name) == value for name, value in changes.items()):
        return base
    try:
        return base.new(**changes)
    except (ConfigError, ValueError) as error:
        raise ApiError(f"sampling parameters: {error}") from error


def for_training(
    asked: GenerationHyperparameters, base: GenerationHyperparameters, whose: Whose
) -> GenerationHyperparameters:
    """Return what a call that may be trained on is sampled with.

    Args:
        asked: what the request asks for.
        base: the run's settings.
        whose: settings that go before.

    Raises:
        ApiError: 400, it would be greedy.
    """
    if whose == "run":
        own = {"greedy": base.greedy} | {name: getattr(base, name) for name in OVERRULED}
        asked = asked if all(getattr(asked, n) == v for n, v in own.items()) else asked.new(**own)
    if asked.effective_temperature == 0:
        raise ApiError(
            "temperature: expected more than 0 in training, got 0: a greedy reply has no "
            "probability to train on. Ask for more, or set gateway.sampling to run: then training "
            "samples at gconfig.temperature whatever is asked for",
            param="temperature",
            code="invalid_value",
        )
    return asked
