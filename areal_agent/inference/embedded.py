"""The embedded inference server as a process: load, bind, publish, serve, end."""

import asyncio
import logging
import os
import secrets
import socket
import sys
import uuid
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from transformers.utils.logging import disable_progress_bar

from areal_agent.aio import fast_loop_factory, settle_collector
from areal_agent.config.base import ConfigModel
from areal_agent.config.inference import WeightUpdateMode
from areal_agent.data.chat import ChatFormat
from areal_agent.errors import ConfigError
from areal_agent.inference.engine.engine import Engine
from areal_agent.inference.engine.load import LoadedModel, load_model
from areal_agent.inference.server.app import make_app
from areal_agent.inference.server.state import ServerState
from areal_agent.lifeline import watch_parent
from areal_agent.net.serve import ServerHandle, base_url, bind, check_exposure, publish
from areal_agent.net.serve import serve as serve_app

logger = logging.getLogger(__name__)

CONTROL_KEY_ENV = "AREAL_AGENT_CONTROL_KEY"
API_KEY_ENV = "AREAL_AGENT_API_KEY"
_SWITCH_INTERVAL_SECONDS = 0.0005


class ServeSettings(ConfigModel):
    """What one server process serves, and where."""

    model: Path
    """Hugging Face folder."""

    host: str = "127.0.0.1"
    """Address to bind."""

    port: int = Field(default=8000, ge=0, le=65535)
    """0 lets the system choose."""

    served_model_name: str | None = None
    """Name that clients use. None takes the folder's name."""

    max_running_requests: int = Field(default=128, ge=1)
    """Requests that decode together."""

    max_model_len: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and reply together. None takes the model's own limit."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and cache."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""

    threads: int = Field(default=1, ge=1)
    """CPU threads of torch."""

    weight_update: WeightUpdateMode = "keep"
    """What running requests do at an update that does not say."""

    tool_parser: str | None = None
    """How tool calls are read from replies. None takes what the model folder names or shows."""

    reasoning_parser: str | None = None
    """How reasoning is told from the rest of a reply, likewise."""

    ready_file: Path | None = None
    """Written once the server answers: host, port, pid, instance_id."""

    instance_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Tells this server from another that happens to have its port."""


def serve(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM, or until the parent process is gone.

    The keys come from the environment: `AREAL_AGENT_CONTROL_KEY` for the control routes (without
    it a random one is made and printed once), `AREAL_AGENT_API_KEY` for the others (without it
    they are open).

    Raises:
        ConfigError: the folder is no usable model, or the host is exposed without keys.
        DataError: its chat template or its tool parser is unusable.
        LaunchError: the port is taken.
        InferenceError: the engine does not agree with transformers.
    """
    watch_parent()
    control_key, api_key = os.environ.get(CONTROL_KEY_ENV), os.environ.get(API_KEY_ENV) or None
    check_exposure(settings.host, {CONTROL_KEY_ENV: control_key, API_KEY_ENV: api_key})
    if not control_key:
        control_key = secrets.token_urlsafe(32)
        print(f"{CONTROL_KEY_ENV}={control_key}", file=sys.stderr)  # noqa: T201 - said once, never logged
    torch.set_num_threads(settings.threads)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    disable_progress_bar()
    sock = bind(settings.host, settings.port)
    try:
        loaded = load_model(settings.model, dtype=settings.dtype, device=settings.device)
        settle_collector()
        with asyncio.Runner(loop_factory=fast_loop_factory()) as runner:
            runner.run(_serve(settings, loaded, sock, control_key, api_key))
    finally:
        sock.close()


async def _serve(
    settings: ServeSettings,
    loaded: LoadedModel,
    sock: socket.socket,
    control_key: str,
    api_key: str | None,
) -> None:
    async with make_engine(settings, loaded) as engine:
        state = make_state(settings, loaded, engine, control_key=control_key, api_key=api_key)

        def ready(_: ServerHandle) -> None:
            host, port = sock.getsockname()[:2]
            logger.info("serving %s at %s", state.model, base_url(host, port))
            if settings.ready_file is not None:
                facts = {
                    "host": host,
                    "port": port,
                    "pid": os.getpid(),
                    "instance_id": settings.instance_id,
                }
                publish(settings.ready_file, facts)

        async def finish() -> None:
            if engine.fault is None:
                await engine.abort()

        await serve_app(make_app(state), sock, on_ready=ready, before_exit=finish)


def make_engine(settings: ServeSettings, loaded: LoadedModel) -> Engine:
    """The engine that the settings describe; enter it to start it.

    Raises:
        ConfigError: `max_model_len` is above the model's own limit.
    """
    limit = settings.max_model_len or loaded.max_model_len
    if limit > loaded.max_model_len:
        raise ConfigError(
            f"max_model_len {limit} is above the {loaded.max_model_len} tokens that the model in "
            f"{str(settings.model)!r} was made for: lower it"
        )
    return Engine(
        loaded.runner,
        decode=lambda ids: loaded.tokenizer.decode(ids, skip_special_tokens=True),
        max_running=settings.max_running_requests,
        max_model_len=limit,
        weight_update=settings.weight_update,
    )


def make_state(
    settings: ServeSettings,
    loaded: LoadedModel,
    engine: Engine,
    *,
    control_key: str,
    api_key: str | None,
) -> ServerState:
    """What the app needs to know.

    Raises:
        DataError: the chat template fails on a plain dialogue, or the tool parser is unknown.
    """
    chat: ChatFormat | None = None
    if loaded.tokenizer.chat_template:
        chat = ChatFormat.from_folder(
            settings.model, settings.tool_parser, settings.reasoning_parser
        )
    else:
        logger.warning("the model has no chat template: /v1/chat/completions will refuse requests")
    return ServerState(
        engine=engine,
        tokenizer=loaded.tokenizer,
        chat=chat,
        model=settings.served_model_name or settings.model.resolve().name,
        instance_id=settings.instance_id,
        eos_ids=loaded.eos_ids | (chat.eos_token_ids if chat is not None else frozenset()),
        control_key=control_key,
        api_key=api_key,
    )
