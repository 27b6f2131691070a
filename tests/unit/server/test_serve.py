"""Ports, exposure, start and end of the server process."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from server_support import served
from tiny_models import make_model

from areal_agent.errors import ConfigError, LaunchError
from areal_agent.inference.embedded import ServeSettings, make_engine
from areal_agent.inference.engine.load import load_model
from areal_agent.net.serve import base_url, bind, check_exposure, publish


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_an_occupied_port_is_named() -> None:
    with closing(bind("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()  # free again at once


def test_eight_servers_get_eight_ports() -> None:
    socks = [bind("127.0.0.1", 0) for _ in range(8)]
    assert len({sock.getsockname()[1] for sock in socks}) == 8
    for sock in socks:
        sock.close()


def test_addresses_that_cannot_be_bound() -> None:
    with pytest.raises(LaunchError, match="from 0 to 65535, got 65546"):
        bind("127.0.0.1", 65546)
    with pytest.raises(LaunchError, match=r"cannot bind '192\.0\.2\.1'"):
        bind("192.0.2.1", 0)


def test_urls_bracket_ipv6() -> None:
    assert base_url("::1", 80) == "http://[::1]:80"
    assert base_url("127.0.0.1", 80) == "http://127.0.0.1:80"


def test_other_machines_are_let_in_only_with_keys() -> None:
    check_exposure("127.0.0.1", {"A": None, "B": None})
    check_exposure("0.0.0.0", {"A": "x", "B": "y"})
    with pytest.raises(ConfigError, match="B is not set: set them, or bind"):
        check_exposure("0.0.0.0", {"A": "x", "B": None})
    with pytest.raises(ConfigError, match="A and B are not set"):
        check_exposure("::", {"A": None, "B": ""})


def test_the_ready_file_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    publish(path, {"port": 1})
    assert json.loads(path.read_text()) == {"port": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["ready.json"]


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
async def test_serving_on_ipv6(folder: Path) -> None:
    async with served(folder, host="::1") as server:
        assert "[::1]" in server.url
        assert (await server.client.get("/health")).json()["instance_id"] == "me"


async def test_idle_connections_are_kept(folder: Path) -> None:
    async with served(folder) as server:
        assert server.handle._server.config.timeout_keep_alive == 600


def test_a_context_beyond_the_models_own_is_refused(folder: Path) -> None:
    loaded = load_model(folder, dtype="float32", device="cpu")
    settings = ServeSettings(model=folder, max_model_len=257)
    with pytest.raises(ConfigError, match="max_model_len 257 is above the 256"):
        make_engine(settings, loaded)


@contextmanager
def process(folder: Path, ready: Path) -> Generator[subprocess.Popen[str]]:
    """A server process, ready."""
    code = (
        "import sys; from pathlib import Path\n"
        "from areal_agent.inference.embedded import ServeSettings, serve\n"
        "serve(ServeSettings(model=Path(sys.argv[1]), port=0, ready_file=Path(sys.argv[2]),"
        " instance_id='it'))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(ready)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert child.poll() is None, child.stderr.read() if child.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_within_seconds(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    ready = tmp_path / "ready.json"
    with process(folder, ready) as child:
        facts = json.loads(ready.read_text())
        assert facts["pid"] == child.pid
        url = f"http://{facts['host']}:{facts['port']}"
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
            assert client.get("/health").json()["instance_id"] == facts["instance_id"] == "it"
            answers: list[httpx.Response] = []
            body = {"prompt": [5], "max_tokens": 250, "n": 64, "ignore_eos": True}
            long = threading.Thread(
                target=lambda: answers.append(client.post("/v1/completions", json=body))
            )
            long.start()
            while "running 0.0" in client.get("/metrics").text:
                time.sleep(0.005)
            started = time.monotonic()
            child.send_signal(number)
            _, errors = child.communicate(timeout=10)
            assert time.monotonic() - started < 8
            long.join()
        assert child.returncode == 0
        reasons = {choice["finish_reason"] for choice in answers[0].json()["choices"]}
        assert reasons <= {"abort", "length"}
        assert "AREAL_AGENT_CONTROL_KEY=" in errors  # made up, and told once
        bind(facts["host"], facts["port"]).close()
