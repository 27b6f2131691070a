"""Servers on this machine: ready files, ports, failures, and a stop that leaves nothing."""

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from waiting import gone, until

from areal_agent.children import ChildProcess
from areal_agent.config.inference import ServerConfig
from areal_agent.errors import ConfigError, LaunchError
from areal_agent.launch.local import Endpoint, ServerGroup, launch_embedded_servers, server_ports

DUMMY = (sys.executable, str(Path(__file__).with_name("dummy_server.py")))


@asynccontextmanager
async def launch(
    folder: Path, *, n: int = 1, port: int = 0, timeout: float = 60.0, threads: int = 1
) -> AsyncGenerator[ServerGroup]:
    config = ServerConfig(port=port, startup_timeout_seconds=timeout, threads=threads)
    async with launch_embedded_servers(
        config, Path("model"), n_servers=n, log_dir=folder, control_key="s3cret", command=DUMMY
    ) as group:
        yield group


async def test_eight_servers_start_at_once_on_ports_of_their_own(tmp_path: Path) -> None:
    async with launch(tmp_path, n=8, threads=3) as group:
        endpoints = group.endpoints
        assert len({e.port for e in endpoints}) == 8
        assert len({e.instance_id for e in endpoints}) == 8
        for i, endpoint in enumerate(endpoints):
            ready = tmp_path / f"server-{i}.json"
            assert stat.S_IMODE(ready.stat().st_mode) == 0o600
            assert json.loads(ready.read_text())["instance_id"] == endpoint.instance_id
            socket.create_connection((endpoint.host, endpoint.port), timeout=5).close()
    assert all(gone(e.pid) for e in endpoints)
    assert not (tmp_path / "server-0.json").exists()
    log = tmp_path / "server-0.log"
    assert "dummy with 3 threads" in log.read_text()
    assert "s3cret" not in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_an_occupied_port_is_named_and_the_other_servers_are_stopped(tmp_path: Path) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        port = occupied.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"cannot bind 127.0.0.1:{port}") as error:
            async with launch(tmp_path, n=2, port=port):
                pass
    assert "inference server-0" in str(error.value)
    assert "exit code 1" in str(error.value)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port + 1))


async def test_ports_above_65535_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"port is 65530 .* 16 servers.* 65545"):
        async with launch(tmp_path, n=16, port=65530):
            pass
    assert os.listdir(tmp_path) == []
    assert server_ports(65530, 6) == [65530, 65531, 65532, 65533, 65534, 65535]
    assert server_ports(0, 3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("mode", "timeout", "message"),
    [
        ("fail", 60.0, "exit code 1.*cannot load the model: no such folder"),
        ("silent", 1.0, r"did not answer within 1 s \(startup_timeout_seconds\).*server-0.log"),
        ("stranger", 60.0, "got 'somebody else'"),
    ],
)
async def test_failed_starts_say_why(
    mode: str, timeout: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMMY_MODE", mode)
    with pytest.raises(LaunchError, match=f"(?s){message}"):
        async with launch(tmp_path, timeout=timeout):
            pass


async def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"ghost could not be started: .*no-such-program"):
        async with ChildProcess("ghost", ["no-such-program"], log=tmp_path / "log"):
            pass


async def test_a_dead_server_is_named_and_a_stopped_one_is_not_an_error(tmp_path: Path) -> None:
    async with launch(tmp_path, n=2) as group:
        os.kill(group.endpoints[1].pid, signal.SIGKILL)
        with pytest.raises(LaunchError, match=r"inference server-1 .* was ended by SIGKILL"):
            await group.servers[1].wait_died()
    assert gone(group.endpoints[0].pid)
    await group.servers[0].wait_died()


async def test_a_stubborn_server_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMMY_MODE", "family")
    async with launch(tmp_path) as group:
        grandchild = json.loads((tmp_path / "server-0.json").read_text())["grandchild"]
        assert not gone(grandchild, 0.0)
    assert gone(grandchild)

    async with ChildProcess(
        "stubborn",
        ["bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"],
        log=tmp_path / "log",
        stop_grace_seconds=0.3,
    ) as child:
        await until(lambda: (tmp_path / "log").read_text() != "")
    assert child.returncode == -signal.SIGKILL
    assert group.endpoints[0].pid != child.pid


async def test_cancelling_a_start_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMMY_MODE", "silent")

    async def start() -> None:
        async with launch(tmp_path, n=2):
            raise AssertionError("it never answers")

    logs = [tmp_path / f"server-{i}.log" for i in range(2)]
    before = _children()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(start())
        await until(lambda: all(log.exists() and "dummy" in log.read_text() for log in logs))
        task.cancel()
    assert task.cancelled()
    assert _children() == before


def _children() -> set[str]:
    """Ids of our children, as the kernel lists them."""
    pid = os.getpid()
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_urls_bracket_ipv6() -> None:
    assert Endpoint("::1", 80, 1, "a").url == "http://[::1]:80"
    assert Endpoint("127.0.0.1", 80, 1, "a").url == "http://127.0.0.1:80"
