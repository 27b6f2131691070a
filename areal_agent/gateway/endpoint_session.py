"""One episode at an endpoint: its calls, counted, and the reward that was posted."""

import hashlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from areal_agent.errors import InferenceError, ServerError
from areal_agent.net.api_error import ApiError

_AGENTS_FAULT = frozenset({400, 404, 405, 413, 415, 422})
"""Answers that say something about the request. Any other failure is the endpoint's."""


class EndpointSession:
    """One episode's calls: how many there were, and which were never answered."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(32)
        """Opens the session; also as a part of its URL."""
        self.counts: Counter[str] = Counter(calls=0, failed_calls=0, retries=0)
        self.is_truncated = False
        """A prompt was over the model's context."""
        self.reward: float | None = None
        """What was posted."""
        self._rewarded_at = 0
        self._failures: dict[bytes, InferenceError] = {}

    @property
    def failure(self) -> InferenceError | None:
        """Why a call has no answer, after all retries of its client."""
        return next(iter(self._failures.values()), None)

    def called(self, *, retry: bool) -> None:
        """Count a call that goes out."""
        self.counts["retries" if retry else "calls"] += 1

    def answered(self, digest: bytes) -> None:
        """Note that a call, or a retry of it, has its answer."""
        self._failures.pop(digest, None)

    def failed(self, digest: bytes, status: int, text: str) -> None:
        """Note that a call has none."""
        self.counts["failed_calls"] += 1
        if status == 400 and "context_length_exceeded" in text:
            self.is_truncated = True
        if status not in _AGENTS_FAULT:
            self._failures[digest] = ServerError(f"the endpoint answered {status}: {text[:500]}")

    def set_reward(self, reward: float) -> None:
        """Take the episode's reward.

        Raises:
            ApiError: 400, an earlier turn has one already.
        """
        if self.reward is not None and self._rewarded_at != self.counts["calls"]:
            raise ApiError(
                "reward: an earlier turn has one already, and rewards of single turns need the "
                "captured conversation, which there is not with inference.type openai",
                param="reward",
            )
        self.reward, self._rewarded_at = reward, self.counts["calls"]


class EndpointSessions:
    """Which session a key belongs to; looked up by a hash, whose timing tells nothing."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, EndpointSession] = {}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[EndpointSession]:
        """Open a session; once it is left, its key opens nothing any more."""
        session = EndpointSession()
        name = _hash(session.key)
        self._by_key[name] = session
        try:
            yield session
        finally:
            del self._by_key[name]

    def find(self, key: str) -> EndpointSession:
        """Return the session that `key` opens.

        Raises:
            ApiError: 401, there is none.
        """
        session = self._by_key.get(_hash(key))
        if session is None:
            raise ApiError(
                "the API key or the path belongs to no open session: use the client, or the "
                "base_url and api_key, that this episode was given, and only while it runs",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )
        return session


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
