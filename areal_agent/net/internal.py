"""The client for traffic inside a run: aiohttp, with httpx's errors.

Plain httpx costs more than ten times aiohttp's CPU time per call at 64 calls in flight, httpx on an
aiohttp transport three times (``tests/benchmarks/bench_http.py``), and a run makes thousands of
calls a second from one loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import httpx

_KEEPALIVE_SECONDS = 60.0
"""Idle sockets are closed after this; our servers keep theirs open for longer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered, whole."""

    status_code: int
    content: bytes

    @property
    def is_error(self) -> bool:
        """The status is 400 or above."""
        return self.status_code >= 400

    @property
    def is_server_error(self) -> bool:
        """The status is 500 or above."""
        return self.status_code >= 500

    @property
    def text(self) -> str:
        """The content, as far as it is UTF-8."""
        return self.content.decode("utf-8", errors="replace")


class InternalClient:
    """Sends requests from one pool without a limit: the callers bound how much is in flight.

    Proxy variables are ignored, redirects are not followed, cookies are not kept. Only connecting
    is limited in time: the caller bounds the whole call.
    """

    def __init__(self, *, connect_timeout_seconds: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Send, and read the whole answer. Cancelling the caller closes the connection.

        With `on_line`, the lines of an answer that is no error go there as they come, without
        their ends, and `Answer.content` stays empty.

        Raises:
            httpx.ConnectError: nobody could be reached.
            httpx.TransportError: the connection broke before the answer was whole.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=self._timeout,
            )
        try:
            async with self._session.request(
                method, url, data=content, headers=headers, allow_redirects=False
            ) as answer:
                if on_line is None or answer.status >= 400:
                    body = await answer.read()
                else:
                    await _read_lines(answer.content, on_line)
                    body = b""
        except (TimeoutError, aiohttp.ClientConnectorError) as error:
            raise httpx.ConnectError(str(error) or "connecting took too long") from error
        except aiohttp.ClientError as error:
            raise httpx.ReadError(f"{type(error).__name__}: {error}") from error
        return Answer(answer.status, body)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()


async def _read_lines(content: aiohttp.StreamReader, on_line: Callable[[bytes], None]) -> None:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            on_line(line)
    if rest:
        on_line(rest)
