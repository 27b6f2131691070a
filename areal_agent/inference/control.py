"""The servers' control routes: pause, resume, weights, counts. Every call is bounded in time."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import httpx
import orjson

from areal_agent.aio import collect
from areal_agent.errors import (
    EngineFault,
    InferenceError,
    RequestError,
    ServerError,
    WeightUpdateError,
)
from areal_agent.inference.base import ServerLoad
from areal_agent.inference.openai import error_text
from areal_agent.inference.pool import Replica, ReplicaPool
from areal_agent.net.internal import Answer, InternalClient

logger = logging.getLogger(__name__)


class ControlPlane:
    """Speaks to every replica that is up, at once."""

    def __init__(
        self,
        pool: ReplicaPool,
        client: Callable[[], InternalClient],
        *,
        control_key: str,
        timeout_seconds: float,
        update_timeout_seconds: float,
    ) -> None:
        self._pool = pool
        self._client = client
        self._headers = {"authorization": f"Bearer {control_key}"}
        self._timeout = timeout_seconds
        self._update_timeout = update_timeout_seconds

    async def health(self, replica: Replica) -> dict[str, Any]:
        """Return a replica's health, checked to come from the process it should.

        Raises:
            ServerError: it cannot be reached, or another server answers at its address.
            EngineFault: its engine broke.
        """
        health = await self._call(replica, "GET", "/health", fault_is_an_answer=True)
        if health.get("status") == "fault":
            raise EngineFault(f"the engine at {replica.url} broke: {health.get('reason')}")
        if replica.instance_id is not None and health.get("instance_id") != replica.instance_id:
            raise ServerError(
                f"expected the server {replica.instance_id!r} at {replica.url}, got "
                f"{health.get('instance_id')!r}: another process took its address"
            )
        return health

    async def pause(
        self, mode: Literal["abort", "keep"], replicas: Sequence[Replica] | None = None
    ) -> None:
        """Pause replicas, all that are up for None, or raise."""
        await collect(
            self._call(replica, "POST", "/control/pause", {"mode": mode})
            for replica in (self._pool.up if replicas is None else replicas)
        )

    async def resume(self) -> None:
        """Resume every replica; one that cannot be is down, and its requests move."""

        async def one(replica: Replica) -> None:
            try:
                await self._call(replica, "POST", "/control/resume", {})
            except InferenceError as error:
                logger.error("%s was not resumed and gets no more requests: %s", replica.url, error)
                self._pool.mark_down(replica, error)

        await collect(one(replica) for replica in self._pool.up)

    async def stats(self) -> dict[str, dict[str, Any]]:
        """Return each replica's counts; those of a replica that does not answer are {}.

        By the instance that it is known to be, else by URL.
        """

        async def one(replica: Replica) -> dict[str, Any]:
            try:
                return await self._call(replica, "GET", "/control/stats")
            except InferenceError as error:
                logger.warning("no counts from %s: %s", replica.url, error)
                return {}

        up = self._pool.up
        names = [replica.instance_id or replica.url for replica in up]
        counts = await collect(one(replica) for replica in up)
        return dict(zip(names, counts, strict=True))

    async def load(self) -> ServerLoad | None:
        """Return what the replicas that answer have to do; None when none does."""

        async def one(replica: Replica) -> dict[str, Any]:
            try:
                return await self._call(replica, "GET", "/control/stats?spans=0")
            except InferenceError as error:
                logger.debug("no load from %s: %s", replica.url, error)
                return {}

        found = [counts for counts in await collect(map(one, self._pool.up)) if "slots" in counts]
        if not found:
            return None
        return ServerLoad(
            running=sum(int(counts["running"]) for counts in found),
            waiting=sum(int(counts["waiting"]) for counts in found),
            slots=sum(int(counts["slots"]) for counts in found),
            tokens=sum(int(counts.get("generated_tokens", 0)) for counts in found),
        )

    async def update_weights(
        self,
        path: Path,
        version: int,
        *,
        previous: tuple[Path, int] | None,
    ) -> None:
        """Load `path` on every replica that is up; on a failure put `previous` back everywhere.

        A replica that turns out to be dead is left out, and so is one that fails alone and is
        brought up to date by somebody else. When nobody is left but some are expected back, they
        are to be given the new weights then.

        Raises:
            WeightUpdateError: naming each replica that failed and its reply.
        """
        up = self._pool.up
        failures = await collect(self.load_weights(replica, path, version) for replica in up)
        failed = {r: error for r, error in zip(up, failures, strict=True) if error is not None}
        await collect(self._leave_out_if_gone(replica, failed) for replica in list(failed))
        if len(failed) < len(self._pool.up) and all(replica.expected for replica in failed):
            for replica, error in failed.items():
                logger.warning("%s did not load version %d: %s", replica.url, version, error)
                self._pool.mark_down(replica, error)
            failed.clear()
        up = self._pool.up
        if (up and not failed) or (not up and self._pool.expected):
            return
        if not up:
            raise WeightUpdateError(f"cannot load {path} as version {version}: no replica is left")
        await self._roll_back(up, failed, version, previous)
        await self.resume()
        raise WeightUpdateError(
            f"version {version} was not loaded from {path} and is served nowhere: "
            + "; ".join(f"{replica.url}: {error}" for replica, error in failed.items())
        )

    async def _leave_out_if_gone(
        self, replica: Replica, failed: dict[Replica, InferenceError]
    ) -> None:
        """A replica that died serves no weights at all: the others need not go back for it."""
        try:
            await self.health(replica)
        except InferenceError:
            self._pool.mark_down(replica, failed.pop(replica))

    async def load_weights(
        self, replica: Replica, path: Path, version: int, *, back: bool = False
    ) -> InferenceError | None:
        """Have a replica serve `path` as `version`, an older one if `back`; returns what failed."""
        body: dict[str, Any] = {"path": str(path), "version": version}
        if back:
            body["allow_older"] = True
        try:
            reply = await self._call(
                replica, "POST", "/control/update_weights", body, timeout=self._update_timeout
            )
        except InferenceError as error:
            return error
        if reply.get("version") != version:
            return ServerError(f"expected version {version} after the update, got {reply!r}")
        return None

    async def _roll_back(
        self,
        up: Sequence[Replica],
        failed: dict[Replica, InferenceError],
        version: int,
        previous: tuple[Path, int] | None,
    ) -> None:
        """Whoever has the new weights, or may get them yet, gets the old ones back."""

        async def one(replica: Replica) -> None:
            if isinstance(failed.get(replica), RequestError):
                return  # It answered: the old weights are still served.
            if replica in failed and not await self._has(replica, version):
                return
            if previous is None:
                error: InferenceError | None = ServerError("the weights before are not known")
            else:
                error = await self.load_weights(replica, *previous, back=True)
            if error is not None:
                logger.error("%s could not go back: %s", replica.url, error)
                why = ServerError(f"{replica.url} may serve version {version} alone: {error}")
                self._pool.mark_down(replica, why)

        await collect(one(replica) for replica in up)

    async def version(self, replica: Replica) -> int:
        """Return the version that a replica serves.

        Raises:
            RequestError: the control key is not the server's.
            ServerError: it cannot be reached.
        """
        reply = await self._call(replica, "GET", "/control/version")
        return int(reply.get("version", 0))

    async def _has(self, replica: Replica, version: int) -> bool:
        """Tell whether a replica may serve `version`: it says so, or does not answer."""
        try:
            return await self.version(replica) == version
        except InferenceError:
            return True

    async def _call(
        self,
        replica: Replica,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        fault_is_an_answer: bool = False,
    ) -> dict[str, Any]:
        url = replica.url + path
        seconds = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                response = await self._send(method, url, body)
        except TimeoutError as error:
            raise ServerError(f"{url} did not answer within {seconds:g} s") from error
        except (httpx.TransportError, OSError) as error:
            raise ServerError(
                f"{url} cannot be reached: {type(error).__name__}: {error}"
            ) from error
        if response.is_error and not (fault_is_an_answer and response.status_code == 503):
            text = f"{url} answered {response.status_code}: {error_text(response)}"
            raise RequestError(text, status=response.status_code)
        try:
            return cast("dict[str, Any]", orjson.loads(response.content or b"{}"))
        except orjson.JSONDecodeError as error:
            raise ServerError(f"{url} answered {response.content[:200]!r}, not JSON") from error

    async def _send(self, method: str, url: str, body: dict[str, Any] | None) -> Answer:
        """Send; a dropped idle socket is tried once more, as every control call may be repeated."""
        content = None if body is None else orjson.dumps(body)
        headers = {**self._headers, "content-type": "application/json"}
        try:
            return await self._client().request(method, url, content=content, headers=headers)
        except (httpx.TransportError, OSError):
            return await self._client().request(method, url, content=content, headers=headers)
