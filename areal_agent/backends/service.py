"""What the trainer's process does: answers calls of one `TrainBackend`, one after the other."""

import logging
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from areal_agent.backends.base import LossSpec, TrainBackend
from areal_agent.backends.frames import Frame, encode, read_frame, unpack_batch
from areal_agent.backends.losses import loss_from_spec
from areal_agent.errors import ArealAgentError
from areal_agent.trajectory import RolloutBatch, TrainBatch

logger = logging.getLogger(__name__)

Answer = tuple[dict[str, Any], dict[str, Tensor]]
Build = Callable[[Mapping[str, Any]], TrainBackend]
"""Makes the backend from the header of the driver's first message."""


def serve(connection: socket.socket, build: Build) -> None:
    """Answer until the driver closes. What raises is answered too, by its name."""
    backend: TrainBackend | None = None
    with connection.makefile("rb") as requests:
        while (request := read_frame(requests)) is not None:
            start = time.time()
            tensors: dict[str, Tensor] = {}
            try:
                if backend is None:
                    backend, answer = build(request.header), {}
                else:
                    answer, tensors = _call(backend, request)
            except Exception as error:  # noqa: BLE001 - whatever failed, the driver must hear of it
                answer = {"error": _describe(error)}
            header = {"id": request.header["id"], "span": [start, time.time()], **answer}
            connection.sendall(encode(Frame(header, tensors)))


def _call(backend: TrainBackend, request: Frame) -> Answer:
    header = request.header
    match header["method"]:
        case "logprobs":
            batch = unpack_batch(RolloutBatch, header["batch"], request.tensors)
            return {}, {"logprobs": backend.logprobs(batch)}
        case "step":
            train_batch = unpack_batch(TrainBatch, header["batch"], request.tensors)
            result = backend.step(train_batch, loss_from_spec(LossSpec(**header["loss"])))
            return {"applied": result.applied, "metrics": dict(result.metrics)}, {}
        case "export":
            backend.export(Path(header["folder"]))
        case "save":
            backend.save(Path(header["folder"]))
        case "load":
            backend.load(Path(header["folder"]))
        case other:
            raise ValueError(f"expected a method of TrainBackend, got {other!r}")
    return {}, {}


def _describe(error: Exception) -> dict[str, str]:
    """Name an error so that the driver can raise it again."""
    if not isinstance(error, ArealAgentError):
        logger.error("a call failed", exc_info=error)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
