"""The composition root: settings in, a running `Run` out, everything closed again at the end."""

import asyncio
import json
import logging
import platform
import sys
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from areal_agent.aio import task_group
from areal_agent.backends.process import STARTUP_SECONDS, ProcessBackend
from areal_agent.config.experiment import ExperimentConfig
from areal_agent.config.load import LoadedConfig, dump_config, load_config
from areal_agent.errors import InferenceError, RolloutError
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.launch.local import ServerGroup
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.audit import CaptureAudit
from areal_agent.rollout.records import EpisodeRecorder
from areal_agent.trainer.folder import RunFolder, create_run_folder
from areal_agent.trainer.lent import lend_to_episodes
from areal_agent.trainer.parts import Parts, prepare
from areal_agent.trainer.pinned import pin_paths
from areal_agent.trainer.run import Run
from areal_agent.trainer.servers import ServerKeys, keep_servers, launch_servers, make_engine
from areal_agent.trainer.supervised import supervised

logger = logging.getLogger(__name__)

_NOTICE_SECONDS = 0.5
"""The death of a process of ours is noticed within this time."""

Settings = LoadedConfig[ExperimentConfig] | ExperimentConfig | Path | str


def as_loaded(settings: Settings) -> LoadedConfig[ExperimentConfig]:
    """Take a settings file, loaded settings, or settings made in code."""
    if isinstance(settings, LoadedConfig):
        return settings
    if isinstance(settings, ExperimentConfig):
        return LoadedConfig(settings, Path.cwd(), {}, "<code>")
    return load_config(settings)


@asynccontextmanager
async def open_run(settings: Settings) -> AsyncGenerator[Run]:
    """Start servers and trainer; inside, the run works; afterwards, nothing of it is left.

    Args:
        settings: a settings file, or what `load_config` gave, or an `ExperimentConfig` (relative
            paths then start from the working directory).

    Raises:
        ConfigError: the settings are wrong; nothing was started.
        CaptureError: the audit found that the servers report other logprobs than they have.
        LaunchError: a server did not start, or none was left while the run went on.
        StallError: the run made no progress for too long.
        TrainError: the trainer did not start, or ended by itself.
    """
    parts = prepare(as_loaded(settings))
    folder = _run_folder(parts)
    async with (
        supervised(parts.config.rollout.supervisor, folder) as supervision,
        AsyncExitStack() as stack,
    ):
        await stack.enter_async_context(parts.agents.running(folder.logs))
        keys = ServerKeys()
        async with supervision.waits.until(
            "servers and trainer", "their start", start_seconds(parts)
        ):
            servers, backend = await _start_processes(
                stack, launch_servers(parts, folder, keys), _backend(parts, folder)
            )
        clients, rewards = await lend_to_episodes(stack, parts.config, folder.logs)
        engine = await stack.enter_async_context(make_engine(parts, servers, clients, keys))
        recorder = EpisodeRecorder(folder.episodes, parts.chat.decode)
        await stack.enter_async_context(recorder)
        keeping = keep_servers(servers, engine.fleet, parts.config.rollout.server)
        await _watch(stack, {"servers": keeping, "trainer": backend.wait_died()})
        parts.gateway.desk.key_file = folder.admin_key
        await stack.enter_async_context(parts.gateway)
        described = {
            "inference servers": engine.fleet.describe,
            "trainer": backend.describe,
            "reward workers": rewards.describe,
            "agent workers": parts.agents.describe,
        }
        supervision.attend(described, engine)
        audit = await stack.enter_async_context(_audit(parts, folder, engine))
        inner = await stack.enter_async_context(AsyncExitStack())
        stack.callback(supervision.closing)
        run = Run(
            parts,
            folder,
            engine=engine,
            backend=backend,
            recorder=recorder,
            audit=audit,
            rewards=rewards,
            supervision=supervision,
            stack=inner,
        )
        yield run


def _run_folder(parts: Parts) -> RunFolder:
    """Make the run's folder, with what says how it can be repeated."""
    folder = create_run_folder(parts.config, Path.cwd())
    pinned = pin_paths(parts.config, parts.base)
    folder.settings.write_text(dump_config(pinned), encoding="utf-8")
    write_environment(folder)
    return folder


async def open_engine(
    stack: AsyncExitStack, parts: Parts, folder: RunFolder, clients: HttpClients
) -> HttpInferenceEngine:
    """Start servers without a trainer, until `stack` is closed; with none left its body ends."""
    keys = ServerKeys()
    servers = await stack.enter_async_context(launch_servers(parts, folder, keys))
    engine = await stack.enter_async_context(make_engine(parts, servers, clients, keys))
    keeping = keep_servers(servers, engine.fleet, parts.config.rollout.server)
    await _watch(stack, {"servers": keeping})
    return engine


async def _watch(stack: AsyncExitStack, parts: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Let the end of a process end the body of `stack`, and be what is told of it."""
    watch = await stack.enter_async_context(task_group())
    for name, waiting in parts.items():
        stack.callback(watch.create_task(waiting, name=f"watch {name}").cancel)
    await stack.enter_async_context(_deaths_first())


@asynccontextmanager
async def _deaths_first() -> AsyncGenerator[None]:
    """Hold back a failed call: the watch of a server that has just died says more, and first."""
    try:
        yield
    except (InferenceError, RolloutError):
        await asyncio.sleep(_NOTICE_SECONDS)
        raise


def start_seconds(parts: Parts) -> float:
    """How long the start may take: each process has its deadline, and a margin."""
    return max(parts.config.rollout.server.startup_timeout_seconds, STARTUP_SECONDS) + 60.0


def _audit(parts: Parts, folder: RunFolder, engine: HttpInferenceEngine) -> CaptureAudit:
    dtype = parts.config.rollout.server.dtype
    return CaptureAudit(engine, parts.config.gateway, folder.mismatches, dtype=dtype)


def _backend(parts: Parts, folder: RunFolder) -> ProcessBackend:
    actor = parts.config.actor
    return ProcessBackend(
        actor,
        parts.model,
        total_optimizer_steps=parts.total_steps * actor.ppo_n_minibatches,
        seed=parts.config.seed,
        log=folder.logs / "trainer.log",
    )


async def _start_processes(
    stack: AsyncExitStack,
    servers: AbstractAsyncContextManager[ServerGroup],
    backend: ProcessBackend,
) -> tuple[ServerGroup, ProcessBackend]:
    """Start servers and trainer at the same time; the first failure stops the other."""
    async with task_group() as starting:
        serving = starting.create_task(stack.enter_async_context(servers))
        training = starting.create_task(stack.enter_async_context(backend))
    return serving.result(), training.result()


def write_environment(folder: RunFolder) -> None:
    """Note what the run was made with."""
    names = ("areal-agent", "torch", "transformers", "safetensors", "httpx", "numpy", "pydantic")
    environment = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in names},
    }
    path = folder.root / "environment.json"
    path.write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")
