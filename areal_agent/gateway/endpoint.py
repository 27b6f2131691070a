"""An endpoint that speaks OpenAI's protocol, as agents see it: their calls are passed on.

Agents stay as they are in training: they are handed a client, or a URL and a key, and name any
model. What goes on to the endpoint names its model, carries its key, and is sampled as the settings
say where the agent did not. Answers come back as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import orjson

from areal_agent.errors import ConfigError, RequestError, ServerError
from areal_agent.net.api_error import ApiError
from areal_agent.types import GenerationHyperparameters

LIMITS = {
    "chat/completions": "max_completion_tokens",
    "completions": "max_tokens",
    "messages": "max_tokens",
    "responses": "max_output_tokens",
}
"""The routes where a model is asked, and what each calls the most tokens of a reply."""

_HONOURED = ("greedy", "max_new_tokens", "temperature", "top_p")
_NO_MATTER = frozenset({*_HONOURED, "n_samples", "max_tokens"})
"""Sampling settings that are asked for, or are the endpoint's own affair: its context window."""

_NOT_PASSED_ON = frozenset(
    {"authorization", "connection", "content-length", "cookie", "host", "x-api-key"}
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where calls go, and what is said for the agent."""

    base_url: str
    """Ends in ``/v1`` as a rule."""
    model: str
    api_key: str | None = field(default=None, repr=False)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    request_seconds: float = 600.0
    """How long the endpoint may say nothing."""

    def __post_init__(self) -> None:
        """Refuse sampling settings that the protocol has no word for.

        Raises:
            ConfigError: naming them.
        """
        changed = self.gconfig.model_dump(exclude_defaults=True)
        if unknown := sorted(changed.keys() - _NO_MATTER):
            raise ConfigError(
                f"eval_gconfig.{unknown[0]} cannot be asked of an endpoint (inference.type is "
                f"openai), only {', '.join(_HONOURED)} can: leave it out, or let the agent say it"
            )

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> httpx.Request:
        """Return the call as it goes to the endpoint.

        Raises:
            ApiError: 400, the body is no JSON object.
        """
        out = {k: v for k, v in headers.items() if k.lower() not in _NOT_PASSED_ON}
        if self.api_key is not None:
            out["authorization"] = f"Bearer {self.api_key}"
            if path.startswith("messages"):
                out["x-api-key"] = self.api_key
        return httpx.Request(
            method,
            f"{self.base_url.rstrip('/')}/{path}",
            headers=out,
            content=self._said(path, body) if body else None,
            extensions={"timeout": httpx.Timeout(self.request_seconds, connect=10.0).as_dict()},
        )

    def _said(self, path: str, body: bytes) -> bytes:
        try:
            fields: Any = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ApiError(f"expected JSON in the body: {error}") from error
        if not isinstance(fields, dict):
            raise ApiError("expected a JSON object in the body")
        said = cast("dict[str, Any]", fields)
        if path in LIMITS or "model" in said:
            said["model"] = self.model
        if path in LIMITS:
            said.setdefault("temperature", self.gconfig.effective_temperature)
            if self.gconfig.top_p != 1.0:
                said.setdefault("top_p", self.gconfig.top_p)
            limited = any(name in said for name in ("max_tokens", LIMITS[path]))
            if "max_new_tokens" in self.gconfig.model_fields_set and not limited:
                said[LIMITS[path]] = self.gconfig.max_new_tokens
        return orjson.dumps(said)

    def hidden(self, content: bytes) -> bytes:
        """Return an error's text without the key: some endpoints say the one they were sent."""
        key = self.api_key
        return content.replace(key.encode(), b"***") if key else content

    async def check(self, client: httpx.AsyncClient) -> None:
        """Ask for the endpoint's models, to fail before the first episode where all would.

        Raises:
            ServerError: nobody answers there.
            RequestError: the key is refused.
        """
        try:
            answer = await client.send(self.request("GET", "models", {}, b""))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(
                f"cannot reach {self.base_url} (inference.base_url): {type(error).__name__}: "
                f"{error}"
            ) from error
        if answer.status_code in (401, 403):
            had = "no key was sent" if self.api_key is None else "the key was refused"
            raise RequestError(
                f"{self.base_url} answered {answer.status_code}: {had}; "
                "inference.api_key_env names the environment variable that holds it",
                status=answer.status_code,
            )
