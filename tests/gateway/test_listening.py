"""When the gateway listens, and when it does not."""

import socket

import httpx
import psutil
import pytest
from gateway_support import make_chat, stage

from areal_agent.errors import LaunchError
from areal_agent.gateway.gateway import Gateway


def listening() -> set[int]:
    found = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}


async def test_it_listens_once_somebody_asks_where() -> None:
    before = listening()
    async with stage() as playing:
        assert listening() == before
        url = playing.gateway.url
        assert playing.gateway.url == url
        assert {httpx.URL(url).port} == listening() - before
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/v1/models")).status_code == 401
    assert listening() == before


async def test_it_ends_also_when_nobody_came() -> None:
    async with stage() as playing:
        assert playing.gateway.url


async def test_a_port_that_is_set_is_bound_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} on 127.0.0.1 is in use"):
            async with Gateway(make_chat(), model="policy", port=port):
                pass
    async with Gateway(make_chat(), model="policy", port=port) as gateway:
        assert port in listening()
        assert gateway.url == f"http://127.0.0.1:{port}"


async def test_closed_it_is_nowhere() -> None:
    gateway = Gateway(make_chat(), model="policy")
    with pytest.raises(RuntimeError, match="not open"):
        _ = gateway.url
