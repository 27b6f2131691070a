"""Asynchronous reinforcement learning for LLM agents. Importing this costs no torch.

Public names are loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_agent.config.experiment import ExperimentConfig
    from areal_agent.config.load import load_config
    from areal_agent.inference.base import InferenceEngine
    from areal_agent.rewarding import inline_reward
    from areal_agent.rollout import context as workflow_context
    from areal_agent.rollout.group_reward import GroupReward
    from areal_agent.rollout.reward import AsyncRewardWrapper
    from areal_agent.rollout.workflow import RolloutWorkflow
    from areal_agent.trainer.build import open_run
    from areal_agent.trainer.replay import replay
    from areal_agent.trainer.rl import RLTrainer
    from areal_agent.trajectory import Trajectory
    from areal_agent.types import (
        Episode,
        GenerationHyperparameters,
        Interaction,
        ModelRequest,
        ModelResponse,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncRewardWrapper",
    "Episode",
    "ExperimentConfig",
    "GenerationHyperparameters",
    "GroupReward",
    "InferenceEngine",
    "Interaction",
    "ModelRequest",
    "ModelResponse",
    "RLTrainer",
    "RolloutWorkflow",
    "Trajectory",
    "inline_reward",
    "load_config",
    "open_run",
    "replay",
    "workflow_context",
]

_WHERE = {
    "AsyncRewardWrapper": "areal_agent.rollout.reward",
    "Episode": "areal_agent.types",
    "ExperimentConfig": "areal_agent.config.experiment",
    "GenerationHyperparameters": "areal_agent.types",
    "GroupReward": "areal_agent.rollout.group_reward",
    "InferenceEngine": "areal_agent.inference.base",
    "Interaction": "areal_agent.types",
    "ModelRequest": "areal_agent.types",
    "ModelResponse": "areal_agent.types",
    "RLTrainer": "areal_agent.trainer.rl",
    "RolloutWorkflow": "areal_agent.rollout.workflow",
    "Trajectory": "areal_agent.trajectory",
    "inline_reward": "areal_agent.rewarding",
    "load_config": "areal_agent.config.load",
    "open_run": "areal_agent.trainer.build",
    "replay": "areal_agent.trainer.replay",
}


def __getattr__(name: str) -> Any:
    if name == "workflow_context":
        return importlib.import_module("areal_agent.rollout.context")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'areal_agent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
