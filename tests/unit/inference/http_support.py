"""Engines over scripted servers, for the tests of the client."""

import asyncio
from contextlib import asynccontextmanager

from scripted_server import KEY, scripted

from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.inference.http import HttpInferenceEngine, HttpTimeouts
from areal_agent.net.clients import HttpClients
from areal_agent.types import ModelRequest


@asynccontextmanager
async def engine_for(*servers, **kwargs):
    kwargs.setdefault("timeouts", HttpTimeouts(request_seconds=20.0, retry_seconds=5.0))
    async with (
        asyncio.timeout(30),
        HttpClients() as clients,
        HttpInferenceEngine(
            [server.url for server in servers],
            clients=clients,
            model="fake",
            control_key=KEY,
            **kwargs,
        ) as engine,
    ):
        yield engine


@asynccontextmanager
async def pair(**kwargs):
    """One scripted server and its client."""
    async with scripted() as server, engine_for(server, **kwargs) as engine:
        yield server, engine


@asynccontextmanager
async def two_replicas(**kwargs):
    async with scripted() as one, scripted() as two, engine_for(one, two, **kwargs) as engine:
        yield one, two, engine


def ask(prompt=(1, 2), **gconfig):
    rid = {"rid": gconfig.pop("rid")} if "rid" in gconfig else {}
    return ModelRequest(input_ids=list(prompt), gconfig=GenerationHyperparameters(**gconfig), **rid)
