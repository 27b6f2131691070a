"""How many calls are under way at once, and how many may be."""

from collections.abc import Generator
from contextlib import contextmanager

from areal_agent.net.api_error import ApiError

RETRY_SECONDS = 1
"""When to come again, as an answer with status 429 says."""


class Load:
    """Counts the calls of all sessions."""

    def __init__(self, most: int | None = None) -> None:
        """Start at none.

        Args:
            most: how many may be under way; None means any number.
        """
        self._most = most
        self.calls = 0
        """Under way."""

    def check(self) -> None:
        """Let one more come.

        Raises:
            ApiError: 429, there are too many.
        """
        if self._most is not None and self.calls >= self._most:
            raise too_many(
                f"{self.calls} calls are under way, as many as gateway.max_requests allows: "
                "try again",
                code="too_many_requests",
            )

    @contextmanager
    def one_more(self) -> Generator[None]:
        """Count a call while the body runs."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1


def too_many(message: str, *, code: str) -> ApiError:
    """An error that says when to come again."""
    return ApiError(
        message, status=429, type="rate_limit_error", code=code, retry_seconds=RETRY_SECONDS
    )
