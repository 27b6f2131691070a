"""What cannot be right about settings that are each right on their own."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from areal_agent.config.allocation import ModelAllocation, require_installed
from areal_agent.config.parallelism import Role
from areal_agent.config.yaml_text import Path
from areal_agent.errors import ConfigError

if TYPE_CHECKING:
    from areal_agent.config.experiment import ExperimentConfig

ONLINE = "online"
"""Short name of the workflow whose agents live elsewhere."""

Problem = tuple[Path, str]
"""The setting to change, and what is wrong with it."""


class ContradictionError(ValueError):
    """Settings that contradict each other; pydantic hands it on as what is wrong with them."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(message for _, message in problems))
        self.problems = problems


def check_experiment(config: "ExperimentConfig") -> None:
    """Check that the sections of an experiment fit together and can run here.

    Raises:
        ContradictionError: they do not; holds all reasons.
    """
    trains = config.inference.type != "openai"
    problems = (
        *(_data(config) if trains else ()),
        *(_training(config) if trains else ()),
        *_evaluation(config),
        *_backends(config),
        *_server(config),
        *_supervisor(config),
        *_gateway(config),
        *_inference(config),
    )
    if problems:
        raise ContradictionError(problems)


def _data(config: "ExperimentConfig") -> Iterator[Problem]:
    if config.train_dataset is not None:
        return
    if config.workflow is None or config.workflow.use != ONLINE:
        yield (
            ("train_dataset",),
            "there are no problems to train on: set train_dataset.use (only the workflow "
            f"{ONLINE!r} does without)",
        )
    elif config.total_train_steps is None:
        yield (
            ("total_train_steps",),
            "without train_dataset there are no epochs: set total_train_steps",
        )


def _training(config: "ExperimentConfig") -> Iterator[Problem]:
    samples, rollout = config.gconfig.n_samples, config.rollout
    if config.total_train_steps is None and config.total_train_epochs is None:
        yield (
            ("total_train_steps",),
            "nothing says when to stop: set total_train_steps or total_train_epochs",
        )
    if samples < 2:
        yield (
            ("gconfig", "n_samples"),
            f"gconfig.n_samples is {samples}, but {config.algorithm.type} compares the members of "
            "a group: set it to 2 or more",
        )
    if config.gconfig.effective_temperature == 0:
        yield (
            ("gconfig", "greedy" if config.gconfig.greedy else "temperature"),
            "gconfig.temperature is 0 or greedy is set: training needs sampled tokens with a "
            "probability; set gconfig.temperature above 0",
        )
    if rollout.max_concurrent_rollouts < samples:
        yield (
            ("rollout", "max_concurrent_rollouts"),
            f"a group has gconfig.n_samples = {samples} episodes, which never fit in "
            f"max_concurrent_rollouts = {rollout.max_concurrent_rollouts}: raise it to {samples} "
            "or more",
        )
    if rollout.min_concurrent_rollouts > rollout.max_concurrent_rollouts:
        yield (
            ("rollout", "min_concurrent_rollouts"),
            f"expected at most max_concurrent_rollouts = {rollout.max_concurrent_rollouts}, got "
            f"{rollout.min_concurrent_rollouts}: lower it, or raise the other",
        )
    if rollout.group.min_size > samples >= 2:
        yield (
            ("rollout", "group", "min_size"),
            f"a group has gconfig.n_samples = {samples} episodes, so none would have the "
            f"{rollout.group.min_size} that rollout.group.min_size asks for: lower it",
        )
    rows = rollout.consumer_batch_size * samples
    if config.actor.ppo_n_minibatches > rows:
        yield (
            ("actor", "ppo_n_minibatches"),
            f"a batch has rollout.consumer_batch_size x gconfig.n_samples = {rows} episodes, "
            f"which cannot be cut into {config.actor.ppo_n_minibatches} minibatches",
        )


def _evaluation(config: "ExperimentConfig") -> Iterator[Problem]:
    if config.valid_dataset is not None:
        return
    for name in ("freq_epochs", "freq_steps", "freq_secs"):
        if getattr(config.evaluator, name) is not None:
            yield (
                ("evaluator", name),
                "evaluations need held-out problems, but valid_dataset is null: set it, or "
                f"evaluator.{name} to null",
            )


def _backends(config: "ExperimentConfig") -> Iterator[Problem]:
    backends: dict[Role, str] = {"rollout": config.rollout.backend, "actor": config.actor.backend}
    for role, text in backends.items():
        try:
            require_installed(ModelAllocation.from_str(text), role)
        except ConfigError as error:
            yield (role, "backend"), str(error)


def _server(config: "ExperimentConfig") -> Iterator[Problem]:
    server = config.rollout.server
    try:
        servers = ModelAllocation.from_str(config.rollout.backend).parallel.dp_size
    except ConfigError:
        return
    if server.port and server.port + servers - 1 > 65535:
        yield (
            ("rollout", "server", "port"),
            f"{servers} servers count up from port {server.port} to {server.port + servers - 1}, "
            "but the last port is 65535: lower it, or set 0 to let the system choose",
        )


def _supervisor(config: "ExperimentConfig") -> Iterator[Problem]:
    supervisor = config.rollout.supervisor
    order = ("report_seconds", "cancel_seconds", "end_seconds")
    for earlier, later in pairwise(order):
        first, then = getattr(supervisor, earlier), getattr(supervisor, later)
        if first > then:
            yield (
                ("rollout", "supervisor", later),
                f"{later} is {then:g}, before {earlier} = {first:g}: what stalls is reported, then "
                "episodes are cancelled, then the run ends; raise it, or lower the other",
            )


def _gateway(config: "ExperimentConfig") -> Iterator[Problem]:
    gateway = config.gateway
    if gateway.hosting != "subprocess" and gateway.workers != type(gateway.workers)():
        yield (
            ("gateway", "workers"),
            f"gateway.hosting is {gateway.hosting}, which starts no worker processes: set it to "
            "subprocess, or leave gateway.workers out",
        )


def _inference(config: "ExperimentConfig") -> Iterator[Problem]:
    inference = config.inference
    if inference.type == "embedded":
        for name in ("base_url", "model", "api_key_env"):
            if getattr(inference, name) is not None:
                yield (
                    ("inference", name),
                    "only an endpoint has one, but inference.type is embedded: set it to openai, "
                    "or leave this out",
                )
        return
    for name in ("base_url", "model"):
        if not getattr(inference, name):
            yield ("inference", name), "is needed when inference.type is openai"
    url = urlsplit(inference.base_url or "http://x")
    if url.scheme not in ("http", "https") or not url.netloc:
        yield (
            ("inference", "base_url"),
            f"expected a URL such as http://localhost:8000/v1, got {inference.base_url!r}",
        )
    elif "@" in url.netloc or url.query or url.fragment:
        yield (
            ("inference", "base_url"),
            "expected a URL without user, password or query, for it is saved with the run: put "
            "the key into an environment variable and name that in inference.api_key_env",
        )
