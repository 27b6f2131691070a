"""OpenAI's SDK on an HTTP client that somebody else owns: for endpoints outside of the run."""

from typing import TYPE_CHECKING, Any, cast

import httpx

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def openai_client(
    http_client: httpx.AsyncClient, *, base_url: str, api_key: str, max_retries: int = 2
) -> "AsyncOpenAI":
    """Return an SDK client that need not be closed. It sets no time limit: the caller does."""
    from openai import AsyncOpenAI

    outside = cast("Any", http_client)  # openai 3 names httpx2 in its types, takes both
    return AsyncOpenAI(
        base_url=base_url,
        api_key=api_key,
        http_client=outside,
        max_retries=max_retries,
        timeout=None,
    )
