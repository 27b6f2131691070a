"""Replays the episodes of a run folder: their code, on what they were told, without any server."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from areal_agent.aio import collect
from areal_agent.config.experiment import ExperimentConfig
from areal_agent.config.load import LoadedConfig, load_config
from areal_agent.errors import ConfigError, DataError
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.context import use_clients
from areal_agent.rollout.online import OnlineWorkflow
from areal_agent.rollout.record_reader import Record, Records
from areal_agent.rollout.replay import Replayed, replay_episode
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trainer.build import Settings, as_loaded
from areal_agent.trainer.folder import RunFolder
from areal_agent.trainer.parts import Parts, prepare

GREEDY = "greedy"
"""Splits whose name ends so were sampled greedily."""
_AT_ONCE = 16


async def replay(
    run: Path | str,
    ids: Sequence[str] = (),
    *,
    workflow: object = None,
    settings: Settings | None = None,
    on_replayed: Callable[[Replayed], None] | None = None,
) -> list[Replayed]:
    """Run the code of recorded episodes again, offline, and compare with what was recorded.

    Args:
        run: the run folder.
        ids: which episodes; all without any.
        workflow: an instance, a class or a name. None takes that of the settings.
        settings: a settings file, or what `load_config` gave. None takes those of the run.
        on_replayed: hears of each as soon as it is done.

    Returns:
        What came of each, in the order in which they were recorded.

    Raises:
        ConfigError: the settings name no workflow, or one that cannot be had.
        DataError: there are no records, or none with a wanted id.
    """
    folder = RunFolder(Path(run))
    records = Records(folder.root)
    loaded = _loaded(folder, settings)
    parts = prepare(loaded, with_data=False)
    workflows = _Workflows(parts, workflow)
    results: list[tuple[int, Replayed]] = []
    numbered = enumerate(records.episodes(lambda one: not ids or one["id"] in ids, exact=True))

    async def work() -> None:
        for n, record in numbered:
            done = await _replayed(workflows, record, parts)
            results.append((n, done))
            if on_replayed is not None:
                on_replayed(done)

    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-agent-replay-")))
        clients = await stack.enter_async_context(_Offline())
        stack.enter_context(use_clients(clients))
        await stack.enter_async_context(parts.agents.running(logs))
        await stack.enter_async_context(parts.gateway)
        await collect([work() for _ in range(_AT_ONCE)])
    if not results:
        wanted = f"no episode is called {', '.join(ids)}" if ids else "no episode has ended"
        raise DataError(f"{records.path}: {wanted}")
    return [done for _, done in sorted(results, key=lambda result: result[0])]


async def _replayed(workflows: "_Workflows", record: Record, parts: Parts) -> Replayed:
    workflow = workflows.of(record["split"])
    if isinstance(workflow, OnlineWorkflow):
        why = "its agent lives elsewhere: there is no code of it here"
        return Replayed(record["id"], record["split"], "skipped", why)
    return await replay_episode(
        workflow,
        record,
        parts.chat.decode,
        vocab_size=parts.vocab_size,
        limits=parts.config.rollout.limits,
    )


class _Workflows:
    """The workflow of each split, as the run made it."""

    def __init__(self, parts: Parts, what: object) -> None:
        self._parts = parts
        self._what = parts.config.workflow if what is None else what
        if self._what is None:
            raise ConfigError(
                "the run was given its workflow in code, and its settings name none: hand the "
                "workflow to replay(), or give settings with workflow.use"
            )
        self._made: dict[str, RolloutWorkflow] = {}

    def of(self, split: str) -> RolloutWorkflow:
        """Return the workflow that the episodes of `split` ran."""
        config = self._parts.config
        kind = "train" if split == "train" else "greedy" if split.endswith(GREEDY) else "eval"
        if kind not in self._made:
            gconfig = {
                "train": config.gconfig,
                "eval": config.eval_gconfig,
                "greedy": config.eval_gconfig.new(greedy=True),
            }[kind]
            self._made[kind] = self._parts.workflow(self._what, gconfig)
        return self._made[kind]


def _loaded(folder: RunFolder, settings: Settings | None) -> LoadedConfig[ExperimentConfig]:
    if settings is not None:
        return as_loaded(settings)
    if not folder.settings.is_file():
        raise ConfigError(
            f"expected the settings of the run in {folder.settings}: give a run folder, or settings"
        )
    return load_config(folder.settings)


class _Offline(HttpClients):
    """Clients that refuse: what the network says is not recorded, unless a tool asks it."""

    def external(self) -> httpx.AsyncClient:
        """See `HttpClients.external`."""
        return httpx.AsyncClient(transport=httpx.MockTransport(_refuse))


def _refuse(request: httpx.Request) -> Any:
    raise httpx.ConnectError(
        f"a replay is offline and cannot ask {request.url}: make the request in a function, and "
        "call that with workflow_context.tool()",
        request=request,
    )
