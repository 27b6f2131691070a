"""A whole experiment: the roots that a settings file is read into."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from areal_agent.config.algorithm import AlgorithmConfig, GrpoConfig
from areal_agent.config.base import ConfigModel
from areal_agent.config.checks import check_experiment
from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.config.inference import GatewayConfig, InferenceConfig, RolloutConfig
from areal_agent.config.training import OptimizerConfig, TrainEngineConfig


class UseConfig(ConfigModel):
    """Something made from a name and keyword arguments."""

    use: str
    """A short name from the registry, ``module:Name``, or ``path/to/file.py:Name``. Paths are
    relative to the settings file."""

    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments for it."""


class FrequencyConfig(ConfigModel):
    """When something happens; any of the three may fire. All null means never."""

    freq_epochs: int | None = Field(default=None, ge=1)
    """Every so many epochs."""

    freq_steps: int | None = Field(default=None, ge=1)
    """Every so many steps."""

    freq_secs: float | None = Field(default=None, gt=0)
    """Every so many seconds."""


class EvaluatorConfig(FrequencyConfig):
    """Held-out accuracy before, during and after training."""

    n_problems: int | None = Field(default=256, ge=1)
    """Problems per evaluation during training. None takes all."""

    n_problems_final: int | None = Field(default=None, ge=1)
    """Problems of the evaluations before and after training. None takes all."""

    max_concurrent_rollouts: int = Field(default=64, ge=1)
    """Most evaluation episodes in flight."""

    before_train: bool = True
    """Evaluate the initial weights."""

    greedy_after: bool = True
    """Evaluate the final weights with greedy decoding too."""


class SaverConfig(FrequencyConfig):
    """Exports of the trained model as Hugging Face folders. The last step is always exported."""

    keep: int | None = Field(default=2, ge=1)
    """How many periodic exports to keep. None keeps all."""


class ExperimentConfig(ConfigModel):
    """Reinforcement learning of one policy."""

    experiment_name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the experiment; part of the run folder."""

    trial_name: str = Field(default="trial", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names this run of it; part of the run folder."""

    fileroot: Path = Path("runs")
    """Where run folders are made: ``fileroot/experiment_name/trial_name``."""

    on_existing: Literal["number", "refuse", "overwrite"] = "number"
    """What to do when the run folder exists: add a number, refuse, or delete it first."""

    seed: int = Field(default=1, ge=0)
    """Every random choice derives from it."""

    model: str
    """A Hugging Face folder, or ``builtin:NAME`` for a model that ships with this package."""

    tool_parser: str | None = None
    """How tool calls are read from replies. None takes what the model folder names or shows."""

    reasoning_parser: str | None = None
    """How reasoning is told from the rest of a reply: `think` or `none`. None takes what the model
    folder names or shows."""

    workflow: UseConfig | None = None
    """What an episode does. None means that the program hands it over."""

    train_dataset: UseConfig | None = None
    """Problems to train on. With the workflow `online`, None means that agents bring their own."""

    valid_dataset: UseConfig | None = None
    """Held-out problems. None means no evaluation."""

    total_train_steps: int | None = Field(default=None, ge=1)
    """Stop after so many steps. At least one of this and total_train_epochs is needed."""

    total_train_epochs: int | None = Field(default=None, ge=1)
    """Stop after so many passes over the training data."""

    gconfig: GenerationHyperparameters = GenerationHyperparameters(n_samples=8)
    """Sampling in training; `n_samples` is the size of a group."""

    eval_gconfig: GenerationHyperparameters = GenerationHyperparameters()
    """Sampling in evaluation."""

    inference: InferenceConfig = InferenceConfig()
    """Where replies come from."""

    rollout: RolloutConfig = RolloutConfig()
    """How episodes run and how far they may be ahead of training."""

    gateway: GatewayConfig = GatewayConfig()
    """For agents that are no workflows: an OpenAI-compatible API in front of the policy."""

    actor: TrainEngineConfig = TrainEngineConfig()
    """The trained model's worker."""

    algorithm: AlgorithmConfig = GrpoConfig()
    """How rewards become gradients."""

    evaluator: EvaluatorConfig = EvaluatorConfig()
    """Held-out accuracy before, during and after training."""

    saver: SaverConfig = SaverConfig()
    """Periodic exports of the trained model."""

    sample_dialogues: int = Field(default=3, ge=0)
    """Held-out dialogues shown before and after training."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_experiment(self)
        return self


class SFTConfig(ConfigModel):
    """Supervised fine-tuning on dialogues."""

    experiment_name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the experiment; part of the run folder."""

    seed: int = Field(default=1, ge=0)
    """Every random choice derives from it."""

    batch_size: int = Field(default=32, ge=1)
    """Dialogues per optimiser step."""

    total_train_steps: int = Field(default=800, ge=1)
    """Optimiser steps."""

    max_tokens_per_mb: int = Field(default=8192, ge=1)
    """Padded tokens in one forward pass. Does not change the gradient."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=3e-3)
    """AdamW with warm-up and decay."""
