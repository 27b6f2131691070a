"""Messages between the driver and a worker process: JSON after its length, nothing pickled."""

import json
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:  # a worker that needs no event loop is spared it
    from asyncio import StreamReader

Message = dict[str, Any]

_LENGTH = struct.Struct(">Q")


def encode(message: Message) -> bytes:
    """Return a message's bytes.

    Raises:
        TypeError: it holds what JSON cannot.
        ValueError: the same: a text that is no Unicode, a list that holds itself.
    """
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def read_message(file: BinaryIO) -> Message | None:
    """Read one message; None when the other side has closed."""
    prefix = file.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(prefix)
    body = file.read(length)
    return json.loads(body) if len(body) == length else None


async def receive(stream: "StreamReader") -> Message:
    """Read one message.

    Raises:
        asyncio.IncompleteReadError: the other side has closed.
    """
    (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    return json.loads(await stream.readexactly(length))
