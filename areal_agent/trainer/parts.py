"""Settings to objects: model, datasets, workflow; what can fail before a process starts."""

import inspect
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from areal_agent.config.allocation import ModelAllocation, require_installed
from areal_agent.config.checks import ONLINE
from areal_agent.config.experiment import ExperimentConfig, UseConfig
from areal_agent.config.load import LoadedConfig
from areal_agent.data.chat import ChatFormat
from areal_agent.data.dataset import Row, as_rows
from areal_agent.errors import ConfigError
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.keys import given_admin_key
from areal_agent.launch.agent_pool import AgentPool
from areal_agent.models.load import BUILTIN_PREFIX, load_vocab_size, resolve_model
from areal_agent.registry import (
    bind,
    construct,
    is_function_of_data,
    parameters,
    resolve,
    resolve_args,
)
from areal_agent.rollout.adapters import (
    Agent,
    AgentWorkflow,
    FunctionAgent,
    is_agent,
    sync_advice,
)
from areal_agent.rollout.filters import ShouldAccept, check_filter
from areal_agent.rollout.process_agent import ProcessAgent
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.types import GenerationHyperparameters

_BUILTIN = {ONLINE: "areal_agent.rollout.online:OnlineWorkflow"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of, checked, before anything has been started."""

    config: ExperimentConfig
    base: Path
    """Folder that relative paths in the settings start from."""
    model: Path
    chat: ChatFormat
    vocab_size: int
    train_rows: Sequence[Row]
    eval_rows: Sequence[Row]
    """Held-out problems; empty when there are none."""
    gateway: Gateway
    """For agents; open while the run is."""
    agents: AgentPool
    """Processes for agents; it lends them while the run is open."""
    n_servers: int
    total_steps: int
    """Batches to train on."""
    should_accept: ShouldAccept | None = None
    """The settings' filter of finished groups."""

    def workflow(self, what: object, gconfig: GenerationHyperparameters) -> RolloutWorkflow:
        """Make a workflow that samples as `gconfig` says; see `make_workflow`."""
        if isinstance(what, AgentWorkflow):
            return what
        config = self.config.gateway
        if config.hosting == "subprocess":
            made = process_agent(what, self.agents, base=self.base)
        else:
            made = make_workflow(
                what,
                chat=self.chat,
                gconfig=gconfig,
                base=self.base,
                more={"gateway": self.gateway, "gateway_config": config},
            )
        if isinstance(made, RolloutWorkflow):
            return made
        return AgentWorkflow(
            made,
            self.gateway,
            gconfig,
            discount=config.turn_discount,
            style=config.export_style,
        )


def prepare(loaded: LoadedConfig[ExperimentConfig], *, with_data: bool = True) -> Parts:
    """Find and check everything that the settings name; the datasets too, unless told otherwise.

    Raises:
        ConfigError: a model, dataset, workflow or backend is missing or unusable.
        DataError: a dataset has no rows, or the model cannot write dialogues.
    """
    config, base = loaded.config, loaded.base
    if config.inference.type == "openai":
        raise ConfigError(
            "inference.type is openai, which cannot be trained on: an endpoint gives no token ids "
            "and no logprobs, and takes no new weights; evaluate with areal-agent eval, or set "
            "inference.type to embedded"
        )
    rollout = ModelAllocation.from_str(config.rollout.backend)
    require_installed(rollout, role="rollout")
    require_installed(ModelAllocation.from_str(config.actor.backend), role="actor")
    model = resolve_model(_model_name(config.model, base))
    chat = ChatFormat.from_folder(model, config.tool_parser, config.reasoning_parser)
    train_rows: Sequence[Row] = _train_rows(config, base) if with_data else []
    eval_rows: Sequence[Row] = []
    if with_data and config.valid_dataset is not None:
        eval_rows = make_dataset(config.valid_dataset, base)
    parts = Parts(
        config=config,
        base=base,
        model=model,
        chat=chat,
        vocab_size=load_vocab_size(model),
        train_rows=train_rows,
        eval_rows=eval_rows,
        gateway=_gateway(config, chat, model, base),
        agents=AgentPool(config.gateway.workers),
        n_servers=rollout.parallel.world_size,
        total_steps=total_train_steps(config, len(train_rows)),
        should_accept=_should_accept(config, base),
    )
    if config.workflow is not None:
        parts.workflow(config.workflow, config.gconfig)
    return parts


def most_episodes(config: ExperimentConfig) -> int:
    """How many episodes may be in flight: training's and evaluation's take turns."""
    return max(config.rollout.max_concurrent_rollouts, config.evaluator.max_concurrent_rollouts)


def _gateway(config: ExperimentConfig, chat: ChatFormat, model: Path, base: Path) -> Gateway:
    settings = config.gateway
    key_file = settings.admin_key_file
    return Gateway(
        chat,
        model=model.name,
        host=settings.host,
        port=settings.port,
        sampling=settings.sampling,
        admin_key=given_admin_key(
            settings.host, None if key_file is None else base / key_file.expanduser(), os.environ
        ),
        max_requests=settings.max_requests or 8 * most_episodes(config),
    )


def _train_rows(config: ExperimentConfig, base: Path) -> Sequence[Row]:
    """The problems; as many empty ones as a batch takes where agents bring their own."""
    if config.train_dataset is None:
        return [{} for _ in range(config.rollout.consumer_batch_size)]
    return make_dataset(config.train_dataset, base)


def _should_accept(config: ExperimentConfig, base: Path) -> ShouldAccept | None:
    name = config.rollout.should_accept
    if name is None:
        return None
    found = resolve(name, kind="filters", base=base)
    check_filter(found)
    return found


def _model_name(name: str, base: Path) -> str:
    """A folder's path, taken from `base` when relative; names of built-in models stay."""
    return name if name.startswith(BUILTIN_PREFIX) else str(base / Path(name).expanduser())


def total_train_steps(config: ExperimentConfig, n_rows: int) -> int:
    """Batches to train on: what `total_train_steps` and `total_train_epochs` allow, the smaller."""
    limits: list[int] = []
    if config.total_train_steps is not None:
        limits.append(config.total_train_steps)
    if config.total_train_epochs is not None:
        rows = config.total_train_epochs * n_rows
        limits.append(-(-rows // config.rollout.consumer_batch_size))
    return min(limits)


def make_dataset(use: UseConfig, base: Path) -> Sequence[Row]:
    """A JSONL file, or what a function returns for `args`.

    Raises:
        ConfigError: it cannot be found, or refuses its arguments.
        DataError: it has no usable rows.
    """
    if use.use.endswith((".jsonl", ".json")):
        if use.args:
            raise ConfigError(f"the dataset {use.use!r} is a file and takes no args: {use.args!r}")
        return as_rows(base / use.use, name=use.use)
    factory = resolve(use.use, kind="datasets", base=base)
    if callable(factory):
        return as_rows(construct(factory, use.args, use.use), name=use.use)
    if use.args:
        raise ConfigError(f"the dataset {use.use!r} is no function and takes no args")
    return as_rows(factory, name=use.use)


def process_agent(what: object, pool: AgentPool, *, base: Path) -> ProcessAgent:
    """Name an agent to the processes that shall run it. Nothing is imported here.

    Raises:
        ConfigError: it has no name, or one that JSON cannot hold.
    """
    if isinstance(what, str):
        what = UseConfig(use=what)
    if isinstance(what, UseConfig) and what.use not in _BUILTIN:
        return ProcessAgent(pool, pool.agent(what.use, what.args, base))
    raise ConfigError(
        "gateway.hosting is subprocess: processes of their own import the agent, so it must be "
        f"given by name, as 'module:Name' or 'file.py:Name', got {what!r:.120}"
    )


def make_workflow(
    what: object,
    *,
    chat: ChatFormat | None,
    gconfig: GenerationHyperparameters,
    base: Path,
    more: Mapping[str, Any] | None = None,
) -> RolloutWorkflow | Agent:
    """A workflow or an agent from an instance, a class, a name, or a settings section.

    A class gets those of ``chat``, ``tokenizer``, ``gconfig`` and `more` that its ``__init__``
    names. In `args`, strings under ``reward_fn`` and in ``tools`` are names of functions. Without
    a `chat` there are no tokens, and a class that asks for them is refused.

    Raises:
        ConfigError: it cannot be found or made, or is neither workflow nor agent.
    """
    args: dict[str, Any] = {}
    name = repr(what)
    if isinstance(what, UseConfig):
        args, name, what = resolve_args(what.args, base), what.use, what.use
    if isinstance(what, str):
        name = what
        what = resolve(what, kind="workflows", base=base, builtin=_BUILTIN)
    if advice := sync_advice(what):
        raise ConfigError(f"the agent {name}{advice}")
    if is_function_of_data(what) and inspect.iscoroutinefunction(what):
        return FunctionAgent(bind(what, args, name))
    if _is_ready(what):
        if args:
            raise ConfigError(f"the workflow {name} is an instance already and takes no args")
        return cast("RolloutWorkflow | Agent", what)
    if not callable(what):
        raise ConfigError(
            f"expected a RolloutWorkflow or an agent with `async def run(self, data, ...)`, its "
            f"class or its name, got {name}"
        )
    named = parameters(what)
    offered = {**_offered(chat, gconfig), **(more or {})}
    _refuse_tokens(name, named - args.keys() - offered.keys())
    args = {key: value for key, value in offered.items() if key in named} | args
    made = construct(what, args, name)
    if not _is_ready(made):
        raise ConfigError(
            f"expected {name} to give a RolloutWorkflow or an agent, got {type(made).__name__}: "
            "subclass areal_agent.RolloutWorkflow and write arun_episode(engine, data), or write "
            "a class with `async def run(self, data, client)`"
        )
    return made


def _offered(chat: ChatFormat | None, gconfig: GenerationHyperparameters) -> dict[str, object]:
    if chat is None:
        return {"gconfig": gconfig}
    return {"chat": chat, "tokenizer": chat.tokenizer, "gconfig": gconfig}


def _refuse_tokens(name: str, lacking: Set[str]) -> None:
    """Refuse a class that asks for what there is only where tokens are."""
    for asked in ("chat", "tokenizer", "gateway"):
        if asked in lacking:
            raise ConfigError(
                f"{name} asks for `{asked}`, but inference.type is openai: an endpoint takes and "
                "gives messages, no token ids; write it as an agent with `async def run(self, "
                "data, client)`, or set inference.type to embedded"
            )


def _is_ready(what: object) -> bool:
    """Tell whether `what` is a workflow or an agent, and not the class of one."""
    return not isinstance(what, type) and (isinstance(what, RolloutWorkflow) or is_agent(what))
