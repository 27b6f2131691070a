"""Stands in for ``areal_agent.backends.worker``: its service without a model."""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from areal_agent import errors
from areal_agent.backends.base import StepResult
from areal_agent.backends.service import serve
from areal_agent.lifeline import watch_parent


class FakeBackend:
    """Answers with what it was sent; `export` does what the folder is called."""

    def logprobs(self, batch: Any) -> torch.Tensor:
        return torch.where(batch.loss_mask, batch.logprobs * batch.temperatures, torch.nan)

    def step(self, batch: Any, loss: Any) -> StepResult:
        del loss
        return StepResult(applied=True, metrics={"loss": 0.1 + len(batch), "nan": float("nan")})

    def export(self, folder: Path) -> None:
        match folder.name:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave":
                print("the last words", file=sys.stderr, flush=True)
                os._exit(3)
            case "print":
                os.write(1, b"a library talks to standard output\n")
            case "slow":
                (folder.parent / "slow-started").touch()
                time.sleep(1.0)
                (folder.parent / "slow-done").touch()
            case "hang":
                (folder.parent / "hanging").touch()
                time.sleep(600)
            case "KeyError":
                raise KeyError("lm_head.weight")
            case name:
                raise getattr(errors, name)(f"{name} was asked for")

    def save(self, folder: Path) -> None:
        folder.mkdir()

    def load(self, folder: Path) -> None:
        folder.rmdir()


def build(spec: Mapping[str, Any]) -> FakeBackend:
    if spec["model"] == "missing":
        raise errors.ConfigError("model folder 'missing' does not exist")
    if spec["model"] == "slow":
        time.sleep(600)
    return FakeBackend()


watch_parent(grace_seconds=0.5)
signal.signal(signal.SIGINT, signal.SIG_IGN)
with socket.socket(fileno=int(sys.argv[1])) as connection:
    serve(connection, build)
