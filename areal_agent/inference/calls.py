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
_JSON = {"content-type": "application/json"}


def backoff_seconds(failures: int) -> float:
    """Return how long to wait after so many failures in a row: doubling, with jitter."""
    pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
    return pause * random.uniform(0.5, 1.0)


class Caller:
    """Posts to replicas of a pool.

    A dropped socket, a 5xx and the client errors that may pass (408, 425, 429) are tried again,
    on another replica where there is one, for `retry_seconds` since the first failure in a row.
    A replica that goes on refusing connections, or says that its engine broke, is down.
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
        on_line: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """Return the content of the first answer that is not an error.

        With `on_line`, its lines go there as they come. Once one did, nothing is retried.

        Raises:
            RequestError: the server refused the request; it was sent once.
            ServerError: it failed for too long, or no replica is left.
        """
        now = asyncio.get_running_loop().time
        failing_since: float | None = None
        failures = 0
        avoid: Replica | None = None
        heard = False

        def hear(line: bytes) -> None:
            nonlocal heard
            heard = True
            if on_line is not None:
                on_line(line)

        listener = None if on_line is None else hear
        while True:
            replica = self._pool.choose(rid, avoid=avoid)
            try:
                return await self._once(replica, path, body, {**_JSON, **(headers or {})}, listener)
            except ServerError as error:
                if heard:
                    raise
                failures += 1
                failing_since = now() if failing_since is None else failing_since
                if now() - failing_since >= self._retry_seconds:
                    raise ServerError(
                        f"{error}; tried {failures} times for {self._retry_seconds:g} s"
                    ) from error
                await self._look_into(replica, error)
                # A dropped idle socket says nothing about the replica: the first retry stays.
                avoid = replica if failures > 1 else None
            if failures > 1:
                await asyncio.sleep(backoff_seconds(failures))

    async def _once(
        self,
        replica: Replica,
        path: str,
        body: bytes,
        headers: dict[str, str],
        on_line: Callable[[bytes], None] | None,
    ) -> bytes:
        url = replica.url + path
        replica.running += 1
        try:
            response = await self._client().request(
                "POST", url, content=body, headers=headers, on_line=on_line
            )
        except (httpx.TransportError, OSError) as error:
            failed = ServerError(f"{url} cannot be reached: {type(error).__name__}: {error}")
            raise failed from error
        finally:
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
