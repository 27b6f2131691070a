"""Messages between the driver and a trainer process: a JSON header and tensors, bit for bit.

A frame is a prefix (magic, length of the header, length of the payload, big-endian), the header as
JSON, and the tensors as safetensors. Nothing is pickled.
"""

import dataclasses
import json
import struct
from asyncio import StreamReader
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from areal_agent.errors import TrainError
from areal_agent.trajectory import RolloutBatch, TrainBatch

B = TypeVar("B", bound=RolloutBatch)

_MAGIC = b"AAF1"
_PREFIX = struct.Struct(">4sIQ")


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: Mapping[str, Any]
    """Values that JSON can hold."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def encode(frame: Frame) -> bytes:
    """Return the bytes of `frame`."""
    header = json.dumps(frame.header).encode()
    # A clone each: safetensors refuses tensors that share memory.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in frame.tensors.items()
    }
    payload = tensors_to_bytes(tensors) if tensors else b""
    return _PREFIX.pack(_MAGIC, len(header), len(payload)) + header + payload


def read_frame(file: BinaryIO) -> Frame | None:
    """Read one frame; None when the other side has closed.

    Raises:
        TrainError: what arrives is no frame, or ends in the middle of one.
    """
    prefix = file.read(_PREFIX.size)
    if not prefix:
        return None
    n_header, n_payload = _lengths(prefix)
    body = file.read(n_header + n_payload)
    if len(body) < n_header + n_payload:
        raise TrainError(f"expected a frame of {n_header + n_payload} bytes, got {len(body)}")
    return _decode(body, n_header)


class FrameReader:
    """Reads frames from a stream. A cancelled read loses nothing: the next one goes on."""

    def __init__(self, stream: StreamReader) -> None:
        self._stream = stream
        self._lengths: tuple[int, int] | None = None

    async def read(self) -> Frame:
        """Read one frame.

        Raises:
            asyncio.IncompleteReadError: the other side has closed.
            TrainError: what arrives is no frame.
        """
        if self._lengths is None:
            self._lengths = _lengths(await self._stream.readexactly(_PREFIX.size))
        n_header, n_payload = self._lengths
        body = await self._stream.readexactly(n_header + n_payload)
        self._lengths = None
        return _decode(body, n_header)


def pack_batch(batch: RolloutBatch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a batch into plain values, its kind among them, and tensors."""
    values: dict[str, Any] = {"kind": type(batch).__name__}
    tensors: dict[str, Tensor] = {}
    for item in dataclasses.fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor):
            tensors[item.name] = value
        else:
            values[item.name] = value
    return values, tensors


def unpack_batch(kind: type[B], values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> B:
    """Undo `pack_batch`.

    Raises:
        TrainError: the batch is not a `kind`.
    """
    fields: dict[str, Any] = {**values, **tensors}
    name = fields.pop("kind")
    actual = {cls.__name__: cls for cls in (RolloutBatch, TrainBatch)}.get(name)
    if actual is None or not issubclass(actual, kind):
        raise TrainError(f"expected a {kind.__name__}, got {name!r}")
    return actual(**fields)


def _lengths(prefix: bytes) -> tuple[int, int]:
    if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
        raise TrainError(f"expected a frame that starts with {_MAGIC!r}, got {prefix!r}")
    _, n_header, n_payload = _PREFIX.unpack(prefix)
    return n_header, n_payload


def _decode(body: bytes, n_header: int) -> Frame:
    header = json.loads(body[:n_header])
    payload = body[n_header:]
    return Frame(header, tensors_from_bytes(payload) if payload else {})
