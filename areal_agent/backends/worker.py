"""The trainer's process: serves one `TrainBackend` to the driver over an inherited socket.

Started by `backends.process` as ``python -m areal_agent.backends.worker FD``. It ends when the
socket closes, on SIGTERM, and with its parent.
"""

import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_agent.aio import settle_collector
from areal_agent.lifeline import watch_parent

if TYPE_CHECKING:
    from areal_agent.backends.base import TrainBackend


def main() -> None:
    """Serve until the driver closes the socket whose number is the first argument."""
    watch_parent()  # before the slow imports below: the parent may die during them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    from areal_agent.backends.service import serve

    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.set_inheritable(False)
        serve(connection, build_local)


def build_local(spec: Mapping[str, Any]) -> "TrainBackend":
    """Load the model as the driver's first message asks."""
    from areal_agent.backends.local import LocalBackend
    from areal_agent.config.training import TrainEngineConfig

    backend = LocalBackend(
        TrainEngineConfig.model_validate(spec["config"]),
        Path(spec["model"]),
        total_optimizer_steps=spec["total_optimizer_steps"],
        seed=spec["seed"],
    )
    settle_collector()
    return backend


if __name__ == "__main__":
    main()
