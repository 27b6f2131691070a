"""Serve an ASGI app: bind the port first, publish it when the app answers, end within seconds."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn

from areal_agent.errors import ConfigError, LaunchError

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 600
"""Long generations leave connections idle; the server must not be the one that closes them."""
_DRAIN_SECONDS = 3

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def bind(host: str, port: int) -> socket.socket:
    """Reserve an address; port 0 lets the system choose.

    Raises:
        LaunchError: the port is taken or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(2048)
        sock.setblocking(False)
        sock.set_inheritable(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise LaunchError(
                f"port {port} on {host} is in use by another process: "
                "choose another one, or 0 to let the system choose"
            ) from error
        raise LaunchError(f"cannot bind {host!r} port {port}: {error.strerror}") from error
    except OverflowError as error:
        sock.close()
        raise LaunchError(f"expected a port from 0 to 65535, got {port}") from error
    return sock


def base_url(host: str, port: int) -> str:
    """URL of a server, IPv6 hosts in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_exposure(host: str, keys: dict[str, str | None]) -> None:
    """Refuse to be reachable from other machines without keys that the user chose.

    `keys` maps the environment variable that should hold each key to its value.

    Raises:
        ConfigError: the host is not loopback and a key is missing.
    """
    missing = [name for name, value in keys.items() if not value]
    if host not in LOOPBACK and missing:
        raise ConfigError(
            f"host {host!r} can be reached from other machines, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set: set them, or bind 127.0.0.1"
        )


def publish(path: Path, facts: dict[str, Any]) -> None:
    """Write a small JSON file that only this user can read, all at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(facts))
    temporary.replace(path)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us and tells when it is up and when it ends."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        before_exit: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._before_exit = before_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._before_exit()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class ServerHandle:
    """A server that runs; ask it to stop from anywhere on its loop."""

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server

    def stop(self) -> None:
        """Finish what is in flight, then end; asked twice, end at once."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True


async def _nothing() -> None:
    pass


async def serve(
    app: Any,
    sock: socket.socket,
    *,
    on_ready: Callable[[ServerHandle], None],
    before_exit: Callable[[], Awaitable[None]] = _nothing,
    signals: bool = True,
) -> None:
    """Answer on `sock` until stopped; closes the socket.

    SIGINT and SIGTERM stop it when `signals` is set: `before_exit` runs, requests in flight get a
    few seconds, then they are cut off. A second signal cuts them off at once.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    server = _Server(config, lambda: on_ready(handle), before_exit)
    handle = ServerHandle(server)
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM) if signals else ()
    for number in caught:
        loop.add_signal_handler(number, handle.stop)
    try:
        await server.serve(sockets=[sock])
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
        sock.close()
