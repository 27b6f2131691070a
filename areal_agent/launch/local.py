"""Inference servers on this machine: child processes that say themselves when they answer."""

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from areal_agent.aio import collect, task_group
from areal_agent.children import ChildProcess
from areal_agent.config.inference import ServerConfig
from areal_agent.errors import ConfigError, LaunchError

logger = logging.getLogger(__name__)

CONTROL_KEY_ENV = "AREAL_AGENT_CONTROL_KEY"
"""Hands the key of the control routes to a server; never on a command line, never in a log."""

API_KEY_ENV = "AREAL_AGENT_API_KEY"
"""The same for the routes that answer requests."""

_POLL_SECONDS = 0.02
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers, in its own words."""

    host: str
    port: int
    pid: int
    instance_id: str
    """Random for each start, so that a stranger on the same port is told apart."""

    @property
    def url(self) -> str:
        """Root URL; IPv6 addresses in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class LocalServer:
    """One server process. Entered: it answers. Left: it is gone."""

    def __init__(
        self, child: ChildProcess, *, ready_file: Path, instance_id: str, startup_seconds: float
    ) -> None:
        """Watch over a program that writes `ready_file` once it answers.

        Args:
            child: the program, not yet started.
            ready_file: where it publishes host, port, pid and instance_id, atomically.
            instance_id: what it must call itself there.
            startup_seconds: how long that may take.
        """
        self.child = child
        self._ready_file = ready_file
        self._instance_id = instance_id
        self._startup_seconds = startup_seconds
        self._endpoint: Endpoint | None = None
        self._killed_for: str | None = None
        self._stack = AsyncExitStack()

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        if self._endpoint is None:
            raise LaunchError(f"{self.child.name} does not answer yet: use it with `async with`")
        return self._endpoint

    async def __aenter__(self) -> Self:
        """Start the program and wait until it answers.

        Raises:
            LaunchError: it ended, took too long, or published something else than asked for.
        """
        self._ready_file.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.child)
            stack.callback(self._ready_file.unlink, missing_ok=True)
            self._endpoint = await self._wait_ready()
            self._stack = stack.pop_all()
        logger.info("%s answers at %s", self.child.name, self.endpoint.url)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the program."""
        await self._stack.aclose()

    async def wait_died(self) -> None:
        """Watch it: returns once it was stopped by us.

        Raises:
            LaunchError: it ended by itself, or had to be killed.
        """
        try:
            await self.child.wait_died()
        except LaunchError as error:
            if self._killed_for is None:
                raise
            raise LaunchError(
                f"{self.child.name} (process {self.child.pid}) had to be killed: "
                f"{self._killed_for}; {self.child.describe_log()}"
            ) from error

    def kill(self, why: str) -> None:
        """End a server that is of no use any more."""
        if self._killed_for is None and self.child.returncode is None:
            self._killed_for = why
            self.child.kill()

    async def _wait_ready(self) -> Endpoint:
        try:
            async with asyncio.timeout(self._startup_seconds):
                while (endpoint := _read_endpoint(self._ready_file)) is None:
                    if self.child.returncode is not None:
                        raise LaunchError(f"before it answered, {self.child.describe_end()}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise LaunchError(
                f"{self.child.name} did not answer within {self._startup_seconds:g} s "
                f"(startup_timeout_seconds); {self.child.describe_log()}"
            ) from None
        if endpoint.instance_id != self._instance_id:
            raise LaunchError(
                f"expected {self.child.name} to call itself {self._instance_id!r} in "
                f"{self._ready_file}, got {endpoint.instance_id!r}: another process wrote there"
            )
        return endpoint


class ServerGroup:
    """Servers that were started together. Each may be replaced by another process."""

    def __init__(self, make: Callable[[int], LocalServer], n_servers: int) -> None:
        self._make = make
        self.servers = [make(index) for index in range(n_servers)]

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where they answer, in order."""
        return [server.endpoint for server in self.servers]

    def kill(self, index: int, why: str) -> None:
        """End a server that is of no use any more; whoever watches it hears of it."""
        self.servers[index].kill(why)

    async def stop(self, index: int) -> None:
        """Stop one server, or see to it that nothing of it is left."""
        await self.servers[index].__aexit__(None, None, None)

    async def restart(self, index: int) -> Endpoint:
        """Start another process in the place of one that was stopped.

        Raises:
            LaunchError: it ended, or took too long.
        """
        self.servers[index] = self._make(index)
        return (await self.servers[index].__aenter__()).endpoint


@asynccontextmanager
async def launch_embedded_servers(
    config: ServerConfig,
    model: Path,
    *,
    n_servers: int,
    log_dir: Path,
    control_key: str,
    api_key: str | None = None,
    options: Mapping[str, object] | None = None,
    command: Sequence[str] = (sys.executable, "-m", "areal_agent.cli", "serve"),
) -> AsyncGenerator[ServerGroup]:
    """Start `n_servers` embedded servers at once; all of them answer when the body runs.

    Logs are ``server-<i>.log`` in `log_dir`. The first failure stops the others.

    Raises:
        ConfigError: the ports would pass 65535; nothing has been started.
        LaunchError: a server did not start; the message has its last log lines.
    """
    ports = server_ports(config.port, n_servers)

    def make(index: int) -> LocalServer:
        return _embedded_server(
            config,
            index,
            [*command, str(model), *_flags(config, ports[index]), *_options(options or {})],
            folder=log_dir,
            env={
                CONTROL_KEY_ENV: control_key,
                API_KEY_ENV: api_key or "",  # never our own by inheritance
                "OMP_NUM_THREADS": str(config.threads),
            },
        )

    group = ServerGroup(make, n_servers)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_stop_all, group.servers)
        await collect(server.__aenter__() for server in group.servers)
        yield group


async def _stop_all(servers: Sequence[LocalServer]) -> None:
    async with task_group() as group:
        for server in servers:
            group.create_task(server.__aexit__(None, None, None))


def server_ports(first: int, n_servers: int) -> list[int]:
    """Ports of `n_servers` servers: counting up from `first`, or all 0 (the system chooses).

    Raises:
        ConfigError: they would pass 65535.
    """
    if first == 0:
        return [0] * n_servers
    last = first + n_servers - 1
    if last > _LAST_PORT:
        raise ConfigError(
            f"rollout.server.port is {first} and there are {n_servers} servers, so the last port "
            f"would be {last}, above {_LAST_PORT}: lower the port, or set it to 0"
        )
    return list(range(first, last + 1))


def _flags(config: ServerConfig, port: int) -> list[str]:
    values: dict[str, object] = {
        "--host": config.host,
        "--port": port,
        "--max-running-requests": config.max_running_requests,
        "--max-model-len": config.max_model_len,
        "--dtype": config.dtype,
        "--device": config.device,
        "--threads": config.threads,
        "--weight-update": config.weight_update,
    }
    return _options(values)


def _options(values: Mapping[str, object]) -> list[str]:
    return [
        part for flag, value in values.items() if value is not None for part in (flag, str(value))
    ]


def _embedded_server(
    config: ServerConfig, index: int, argv: list[str], *, folder: Path, env: Mapping[str, str]
) -> LocalServer:
    name = f"server-{index}"
    instance_id = uuid.uuid4().hex
    ready_file = folder / f"{name}.json"
    argv += ["--ready-file", str(ready_file), "--instance-id", instance_id]
    child = ChildProcess(f"inference {name}", argv, log=folder / f"{name}.log", env=env)
    return LocalServer(
        child,
        ready_file=ready_file,
        instance_id=instance_id,
        startup_seconds=config.startup_timeout_seconds,
    )


def _read_endpoint(path: Path) -> Endpoint | None:
    """Read a ready file; None when there is none yet."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(text)
        return Endpoint(
            host=str(fields["host"]),
            port=int(fields["port"]),
            pid=int(fields["pid"]),
            instance_id=str(fields["instance_id"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"expected host, port, pid and instance_id as JSON in {path}, got {text!r}"
        ) from error
