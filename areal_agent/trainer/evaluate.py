"""Evaluation without training: a workflow or an agent on held-out problems, then a table."""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from areal_agent.config.experiment import ExperimentConfig
from areal_agent.config.load import LoadedConfig, dump_config
from areal_agent.errors import ConfigError, RolloutError
from areal_agent.evaluation.evaluator import EvalResult, Evaluator
from areal_agent.gateway.endpoint import Endpoint
from areal_agent.gateway.endpoint_gateway import EndpointGateway
from areal_agent.inference.absent import AbsentEngine
from areal_agent.launch.agent_pool import AgentPool
from areal_agent.launch.reward_pool import RewardPool
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.adapters import Agent
from areal_agent.rollout.context import use_clients
from areal_agent.rollout.deadlines import Waits
from areal_agent.rollout.endpoint import EndpointWorkflow
from areal_agent.rollout.records import EpisodeRecorder
from areal_agent.rollout.reward_workers import use_rewards
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.stats.evaluation import EvaluationDisplay
from areal_agent.trainer.build import (
    Settings,
    as_loaded,
    open_engine,
    start_seconds,
    write_environment,
)
from areal_agent.trainer.folder import RunFolder, create_run_folder
from areal_agent.trainer.lent import lend_to_episodes
from areal_agent.trainer.parts import (
    make_dataset,
    make_workflow,
    most_episodes,
    prepare,
    process_agent,
)
from areal_agent.trainer.pinned import pin_paths
from areal_agent.trainer.supervised import supervised


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """The end of an evaluation in numbers."""

    accuracy: float
    """Mean reward of the episodes that could be scored."""
    stderr: float
    problems: int
    """Episodes that could be scored."""
    failed: int
    """Episodes that could not; they are in no mean."""
    outcomes: Mapping[str, int]
    seconds: float
    model: str
    """What was evaluated: a folder, or an endpoint's name for it."""
    base_url: str | None
    """The endpoint; None for servers of our own."""
    greedy: bool
    run_folder: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    def table(self) -> list[tuple[str, str]]:
        """Name and value of what a person wants to see."""
        ended = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        return [
            ("held-out accuracy", f"{self.accuracy:.3f} ± {self.stderr:.3f}"),
            ("held-out problems", str(self.problems)),
            ("failed episodes", str(self.failed)),
            ("outcomes", ended),
            ("model", self.model),
            ("endpoint", self.base_url or "none: servers of this run"),
            ("seconds", f"{self.seconds:.1f}"),
            ("episodes", str(RunFolder(Path(self.run_folder)).episodes)),
        ]


async def evaluate(
    settings: Settings, *, workflow: object = None, display: EvaluationDisplay | None = None
) -> EvalSummary:
    """Run the held-out problems once, on the model of the settings or on their endpoint.

    Args:
        settings: a settings file, or what `load_config` gave, or an `ExperimentConfig`.
        workflow: an instance, a class or a name. None takes the settings' own.
        display: shows progress. None shows nothing.

    Raises:
        ConfigError: the settings are wrong; nothing was started.
        RolloutError: no episode could be scored.
        StallError: it made no progress for too long.
    """
    loaded = as_loaded(settings)
    what = loaded.config.workflow if workflow is None else workflow
    if what is None:
        raise ConfigError("no workflow: set workflow.use, or hand one to evaluate()")
    if loaded.config.valid_dataset is None:
        raise ConfigError("nothing to evaluate on: set valid_dataset")
    opened = _at_endpoint if loaded.config.inference.type == "openai" else _on_own_servers
    with display or EvaluationDisplay(quiet=True) as shown:
        async with opened(loaded, what) as evaluation:
            return await evaluation.run(shown)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What is ready to run."""

    config: ExperimentConfig
    folder: RunFolder
    evaluator: Evaluator
    workflow: RolloutWorkflow
    recorder: EpisodeRecorder
    model: str
    waits: Waits

    async def run(self, display: EvaluationDisplay) -> EvalSummary:
        """Run, record and sum up."""
        n_problems = self.config.evaluator.n_problems_final
        async with self.waits.until("evaluation", "held-out problems"):
            result = await self.evaluator.evaluate(
                self.workflow,
                n_problems=n_problems,
                progress=display.progress,
                on_episode=lambda episode: self.recorder.record(episode, split="eval", step=0),
            )
        summary = self._summary(result)
        if result.n_scored == 0:
            raise RolloutError(_nothing_scored(result, self.folder))
        self.folder.summary.write_text(summary.to_json() + "\n", encoding="utf-8")
        display.summary(summary.table())
        return summary

    def _summary(self, result: EvalResult) -> EvalSummary:
        return EvalSummary(
            accuracy=result.mean,
            stderr=result.stderr,
            problems=result.n_scored,
            failed=result.n_failed,
            outcomes=result.outcomes,
            seconds=result.seconds,
            model=self.model,
            base_url=self.config.inference.base_url,
            greedy=self.config.eval_gconfig.effective_temperature == 0,
            run_folder=str(self.folder.root),
        )


def _nothing_scored(result: EvalResult, folder: RunFolder) -> str:
    failures = [episode.failure for episode in result.episodes if episode.failure is not None]
    first = f"; the first: {failures[0].type}: {failures[0].message}" if failures else ""
    return (
        f"none of {result.n_failed} episodes could be scored: {dict(result.outcomes)}; see "
        f"{folder.episodes}{first}"
    )


@asynccontextmanager
async def _on_own_servers(
    loaded: LoadedConfig[ExperimentConfig], what: object
) -> AsyncGenerator[_Evaluation]:
    parts = prepare(loaded)
    workflow = parts.workflow(what, parts.config.eval_gconfig)
    folder = _folder(loaded)
    config = parts.config
    async with (
        supervised(config.rollout.supervisor, folder) as supervision,
        AsyncExitStack() as stack,
    ):
        clients, rewards = await lend_to_episodes(stack, config, folder.logs)
        async with supervision.waits.until("servers", "their start", start_seconds(parts)):
            engine = await open_engine(stack, parts, folder, clients)
        recorder = await stack.enter_async_context(
            EpisodeRecorder(folder.episodes, parts.chat.decode)
        )
        await stack.enter_async_context(parts.agents.running(folder.logs))
        await stack.enter_async_context(parts.gateway)
        described = {
            "inference servers": engine.fleet.describe,
            "reward workers": rewards.describe,
            "agent workers": parts.agents.describe,
        }
        supervision.attend(described, engine)
        stack.callback(supervision.closing)
        waits = supervision.waits
        evaluator = Evaluator.of(engine, parts.eval_rows, config)
        yield _Evaluation(config, folder, evaluator, workflow, recorder, config.model, waits)


@asynccontextmanager
async def _at_endpoint(
    loaded: LoadedConfig[ExperimentConfig], what: object
) -> AsyncGenerator[_Evaluation]:
    config, base = loaded.config, loaded.base
    endpoint = endpoint_of(config)
    assert config.valid_dataset is not None
    rows = make_dataset(config.valid_dataset, base)
    pool = AgentPool(config.gateway.workers)
    agent = _agent(what, loaded, pool)
    clients = HttpClients(max_episodes=most_episodes(config))
    host, port = config.gateway.host, config.gateway.port
    gateway = EndpointGateway(endpoint, clients, host=host, port=port)
    workflow = EndpointWorkflow(agent, gateway)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(clients)
        stack.enter_context(use_clients(clients))
        await stack.enter_async_context(gateway)
        folder = _folder(loaded)
        watched = supervised(config.rollout.supervisor, folder)
        supervision = await stack.enter_async_context(watched)
        rewards = RewardPool(config.rollout.reward, log_dir=folder.logs)
        stack.enter_context(use_rewards(await stack.enter_async_context(rewards)))
        await stack.enter_async_context(pool.running(folder.logs))
        recorder = await stack.enter_async_context(EpisodeRecorder(folder.episodes, _no_text))
        described = {"reward workers": rewards.describe, "agent workers": pool.describe}
        supervision.attend(described)
        stack.callback(supervision.closing)
        waits = supervision.waits
        evaluator = Evaluator.of(AbsentEngine(), rows, config)
        yield _Evaluation(config, folder, evaluator, workflow, recorder, endpoint.model, waits)


def _agent(what: object, loaded: LoadedConfig[ExperimentConfig], pool: AgentPool) -> Agent:
    """Make the agent that shall talk to an endpoint.

    Raises:
        ConfigError: it is none, or asks for what only an engine of ours has.
    """
    config, base = loaded.config, loaded.base
    if config.gateway.hosting == "subprocess":
        return process_agent(what, pool, base=base)
    agent = make_workflow(what, chat=None, gconfig=config.eval_gconfig, base=base)
    if isinstance(agent, RolloutWorkflow):
        raise ConfigError(
            f"{type(agent).__name__} is a RolloutWorkflow, which samples by token ids, but "
            "inference.type is openai: an endpoint takes and gives messages; write it as an agent "
            "with `async def run(self, data, client)`, or set inference.type to embedded"
        )
    return agent


def endpoint_of(config: ExperimentConfig) -> Endpoint:
    """Return the endpoint of the settings, with its key from the environment.

    Raises:
        ConfigError: the key's variable is not set, or `eval_gconfig` asks for what cannot be.
    """
    inference = config.inference
    key = None
    if inference.api_key_env is not None:
        key = os.environ.get(inference.api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"inference.api_key_env names {inference.api_key_env!r}, but there is no such "
                "environment variable: set it to the endpoint's key"
            )
    return Endpoint(
        base_url=inference.base_url or "",
        model=inference.model or "",
        api_key=key,
        gconfig=config.eval_gconfig,
        request_seconds=config.rollout.request_timeout_seconds,
    )


def _folder(loaded: LoadedConfig[ExperimentConfig]) -> RunFolder:
    """Make ``fileroot/experiment_name/trial_name-eval``, with the settings in it."""
    config = loaded.config
    named = config.model_copy(update={"trial_name": f"{config.trial_name}-eval"})
    folder = create_run_folder(named, Path.cwd(), trains=False)
    pinned = pin_paths(config, loaded.base)
    folder.settings.write_text(dump_config(pinned), encoding="utf-8")
    write_environment(folder)
    return folder


def _no_text(_: object) -> str:
    return ""
