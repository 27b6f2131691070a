"""One HTTP call to some replica: retried where that can help, at once refused where it cannot."""

import asyncio
import random
from collections.abc import Callable

import httpx
import orjson

from areal_agent.errors import EngineFault, InferenceError, RequestError, ServerError
from areal_agent.inference.openai import RETRIED_STATUSES, error_text
from areal_agent.inference.pool import Replica, ReplicaPool
from areal_agent.net.internal import InternalClient

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_DOWN_AFTER_SECONDS = 0.5
_HEALTH_TIMEOUT_SECONDS = 2.0
_MOST_MOVES = 3
"""A request whose replicas went down so many times may be the reason, and fails."""
_JSON = {"content-type": "application/json"}


def backoff_seconds(failures: int) -> float:
    """Return how long to wait after so many failures in a row: doubling, with jitter."""
    pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
    return pause * random.uniform(0.5, 1.0)


class _Attempts:
    """What one call has tried so far."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._now = asyncio.get_running_loop().time
        self._failing_since: float | None = None
        self._failures = 0
        self._moves = 0
        self.avoid: Replica | None = None
        """The replica that failed twice in a row."""

    def failed(self, replica: Replica, error: ServerError) -> None:
        """Count a failure.

        Raises:
            ServerError: it was one too many, or they have gone on for too long.
        """
        if replica.down is not None:
            self._moves += 1
            if self._moves > _MOST_MOVES:
                raise ServerError(
                    f"{self._moves} servers went down while they had this request: {error}"
                ) from error
            return
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = self._now()
        if self._now() - self._failing_since >= self._retry_seconds:
            raise ServerError(
                f"{error}; tried {self._failures} times for {self._retry_seconds:g} s"
            ) from error
        # A dropped idle socket says nothing about the replica: the first retry stays.
        self.avoid = replica if self._failures > 1 else None

    def forget_failures(self) -> None:
        """Another server answers now: start anew."""
        self._failing_since, self._failures, self.avoid = None, 0, None

    async def pause(self) -> None:
        """Wait before the next attempt; the second one comes at once."""
        if self._failures > 1:
            await asyncio.sleep(backoff_seconds(self._failures))


class Caller:
    """Posts to replicas of a pool.

    A dropped socket, a 5xx and the client errors that may pass (408, 425, 429) are tried again,
    on another replica where there is one, for `retry_seconds` since the first failure in a row.
    A replica that goes on refusing connections, or says that its engine broke, is down. While none
    is up, a call waits for one that is expected back.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        client: Callable[[], InternalClient],
        *,
        retry_seconds: float,
    ) -> None:
        self._pool = pool
        self._client = client
        self._retry_seconds = retry_seconds

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        rid: str | None = None,
        headers: dict[str, str] | None = None,
        on_line: Callable[[bytes], bool] | None = None,
    ) -> bytes:
        """Return the content of the first answer that is not an error.

        With `on_line`, its lines go there as they come. Once it said that it has taken one that
        must not come again, nothing is retried.

        Raises:
            RequestError: the server refused the request; it was sent once.
            ServerError: it failed for too long, or no replica is left.
        """
        attempts = _Attempts(self._retry_seconds)
        heard = False

        def hear(line: bytes) -> None:
            nonlocal heard
            if on_line is not None and on_line(line):
                heard = True

        listener = None if on_line is None else hear
        while True:
            if not self._pool.up:
                await self._pool.wait_for_one()
                attempts.forget_failures()
            replica = self._pool.choose(rid, avoid=attempts.avoid)
            try:
                return await self._once(replica, path, body, {**_JSON, **(headers or {})}, listener)
            except ServerError as error:
                if heard:
                    raise
                attempts.failed(replica, error)
                if replica.down is not None:
                    continue
                await self._look_into(replica, error)
            await attempts.pause()

    async def _once(
        self,
        replica: Replica,
        path: str,
        body: bytes,
        headers: dict[str, str],
        on_line: Callable[[bytes], None] | None,
    ) -> bytes:
        url = replica.url + path
        limit = asyncio.timeout(None)
        replica.running += 1
        try:
            async with limit:
                replica.calls.add(limit)
                response = await self._client().request(
                    "POST", url, content=body, headers=headers, on_line=on_line
                )
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ServerError(f"{replica.url} went down: {replica.down}") from error
        except (httpx.TransportError, OSError) as error:
            failed = ServerError(f"{url} cannot be reached: {type(error).__name__}: {error}")
            raise failed from error
        finally:
            replica.calls.discard(limit)
            replica.running -= 1
        if response.status_code == 200:
            replica.refused_since = None
            return response.content
        text = f"{url} answered {response.status_code}: {error_text(response)}"
        if response.is_server_error or response.status_code in RETRIED_STATUSES:
            raise ServerError(text)
        raise RequestError(text, status=response.status_code)

    async def _look_into(self, replica: Replica, error: ServerError) -> None:
        """Find out whether the replica is down: it refuses connections, or its engine broke."""
        why = await self._fault(replica)
        if why is None:
            replica.refused_since = None
        elif isinstance(why, EngineFault):
            self._pool.mark_down(replica, why)
        else:
            now = asyncio.get_running_loop().time()
            if replica.refused_since is None:
                replica.refused_since = now
            elif now - replica.refused_since >= _DOWN_AFTER_SECONDS:
                self._pool.mark_down(replica, error)

    async def _fault(self, replica: Replica) -> InferenceError | None:
        """Ask for the replica's health; None when it is well or merely slow."""
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_SECONDS):
                response = await self._client().request("GET", replica.url + "/health")
        except TimeoutError:
            return None
        except (httpx.TransportError, OSError) as error:
            return ServerError(f"{replica.url} cannot be reached: {error}")
        try:
            health = orjson.loads(response.content)
            if health["status"] == "fault":
                return EngineFault(f"the engine at {replica.url} broke: {health.get('reason')}")
        except (orjson.JSONDecodeError, KeyError, TypeError):
            pass
        return None
