"""The key-value cache: one slot a request, grown as needed, moved so that no holes remain."""

import torch
from torch import Tensor

from areal_agent.inference.engine.shape import DenseShape

_FIRST_SLOTS = 8
_FIRST_LENGTH = 64


class SlotCache:
    """Keys and values of all slots in one tensor [layers, 2, slots, kv_heads, length, head_dim].

    Memory follows use: slots and length double when they run out. What lies beyond a slot's valid
    length is stale but finite, and masked by whoever reads.
    """

    def __init__(self, shape: DenseShape, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self.data = self._empty(0, 0)

    @property
    def slots(self) -> int:
        return self.data.shape[2]

    @property
    def length(self) -> int:
        return self.data.shape[4]

    def reserve(self, slots: int, length: int) -> None:
        """Make room for so many slots of so many tokens; what is stored stays."""
        if slots <= self.slots and length <= self.length:
            return
        old = self.data
        self.data = self._empty(
            _doubled(max(self.slots, _FIRST_SLOTS), slots),
            _doubled(max(self.length, _FIRST_LENGTH), length),
        )
        self.data[:, :, : old.shape[2], :, : old.shape[4]] = old

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` tokens of two slots."""
        kept = self.data[:, :, a, :, :length].clone()
        self.copy(b, a, length)
        self.data[:, :, b, :, :length] = kept

    def _empty(self, slots: int, length: int) -> Tensor:
        s = self._shape
        # zeros: memory is touched only when written, and stale places are finite
        return torch.zeros(
            (s.layers, 2, slots, s.kv_heads, length, s.head_dim),
            dtype=self._dtype,
            device=self._device,
        )


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
