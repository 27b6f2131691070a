"""The cache-aware forward of dense Llama, Qwen2 and Qwen3 models.

Shapes: N tokens in the flattened batch, B rows, P tokens a row, n running slots, H query heads,
K key-value heads, D head size, L cached length, V vocabulary.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from areal_agent.errors import WeightUpdateError
from areal_agent.inference.engine.cache import SlotCache
from areal_agent.inference.engine.shape import DenseShape, why_not_dense
from areal_agent.inference.engine.weights import (
    DenseWeights,
    LayerWeights,
    check_state,
    fuse,
    read_state,
)

_ATTENTION_CHUNK = 32
"""Slots whose attention is computed together, padded to the longest among them."""
_PREFILL_TOKENS = {"cpu": 768, "cuda": 2048}
"""Most tokens of a prefill call; on a CPU, so many that what they make fits its caches."""
_SCORE_TOKENS = 2048
"""Most tokens that attend at once while scoring."""
_SCORE_ELEMENTS = 1 << 24
"""Most logits held at once while scoring."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries [N, H, D], keys and values of a layer [slots, K, L, D]) to [N, H * D]."""


class DenseModel:
    """Weights, cache and forward of one model. Belongs to one thread at a time."""

    reuses_prefixes = True

    def __init__(
        self,
        config: PretrainedConfig,
        weights: DenseWeights,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = DenseShape.from_config(config)
        self.vocab_size = self.shape.vocab
        self._config = config
        self._weights = weights
        self._dtype = dtype
        self._device = device
        self.prefill_tokens = _PREFILL_TOKENS[device.type]
        self._floor = torch.tensor((self.shape.hidden * self.shape.eps) ** 0.5, device=device)
        self._cache = SlotCache(self.shape, dtype, device)
        self._rope = torch.empty(0, 1, self.shape.head_dim // 2, dtype=torch.complex64)

    @classmethod
    def from_folder(
        cls, folder: Path, config: PretrainedConfig, *, dtype: torch.dtype, device: torch.device
    ) -> "DenseModel":
        """Load a Hugging Face folder.

        Raises:
            WeightUpdateError: its weights do not fit its config.
        """
        shape = DenseShape.from_config(config)
        state = read_state(folder)
        check_state(state, shape.expected())
        return cls(config, fuse(state, shape, dtype, device), dtype=dtype, device=device)

    # --- weights ---------------------------------------------------------------------------------

    def prepare(self, folder: Path) -> DenseWeights:
        """Read, check and arrange new weights; may run in another thread.

        Raises:
            WeightUpdateError: they cannot be served.
        """
        self._check_config(folder)
        state = read_state(folder)
        check_state(state, self.shape.expected())
        weights = fuse(state, self.shape, self._dtype, self._device)
        probe = DenseModel(self._config, weights, dtype=self._dtype, device=self._device)
        ids = [i % self.vocab_size for i in range(8)]
        if not bool(torch.isfinite(probe.prefill(0, [ids], [0])).all()):
            raise WeightUpdateError(
                f"the weights in {str(folder)!r} give logits that are not finite: not taken"
            )
        return weights

    def _check_config(self, folder: Path) -> None:
        try:
            if not (folder / "config.json").is_file():
                return  # weights alone; their names and shapes will tell
            config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise WeightUpdateError(
                f"cannot read config.json in {str(folder)!r}: {error}"
            ) from error
        served: Any = self._config
        same = (
            why_not_dense(config) is None
            and config.model_type == served.model_type
            and config.rope_parameters == served.rope_parameters
            and DenseShape.from_config(config) == self.shape
        )
        if not same:
            raise WeightUpdateError(
                f"the config in {str(folder)!r} is not that of the model that is served: export "
                "the weights from the same model"
            )

    def install(self, weights: DenseWeights) -> None:
        """Serve prepared weights from the next call on; the cache is left as it is."""
        self._weights = weights

    # --- slots -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def copy_slot(self, source: int, target: int, length: int) -> None:
        self._cache.reserve(max(source, target) + 1, length)
        self._cache.copy(source, target, length)

    @torch.inference_mode()
    def swap_slots(self, a: int, b: int, length: int) -> None:
        self._cache.reserve(max(a, b) + 1, length)
        self._cache.swap(a, b, length)

    # --- forward ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(self, first_slot: int, rows: Sequence[list[int]], starts: list[int]) -> Tensor:
        """Fill slots `first_slot` on with `rows`, whose tokens begin at positions `starts`.

        Earlier positions of a slot must hold the tokens before. Returns the logits after each
        row's last token, float32 [B, V].
        """
        return self._logits(self._fill(self._cache, first_slot, rows, starts, only_last=True))

    @torch.inference_mode()
    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Feed one token to each of the slots 0..n-1; returns logits float32 [n, V]."""
        n, longest = len(tokens), int(positions.max()) + 1
        self._cache.reserve(n, longest)
        lengths = positions + 1
        bias = torch.where(
            torch.arange(longest, device=self._device) < self._to(lengths)[:, None], 0.0, -torch.inf
        ).to(self._dtype)[:, None]  # [n, 1, L]
        chunks = [
            (a, min(a + _ATTENTION_CHUNK, n), int(lengths[a : a + _ATTENTION_CHUNK].max()))
            for a in range(0, n, _ATTENTION_CHUNK)
        ]
        k, d, group = (
            self.shape.kv_heads,
            self.shape.head_dim,
            self.shape.heads // self.shape.kv_heads,
        )
        if k > 1:
            bias = bias.repeat_interleave(k, dim=0)

        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            q = q.reshape(n * k, group, d)
            keys, values = keys.view(-1, *keys.shape[2:]), values.view(-1, *values.shape[2:])
            parts: list[Tensor] = []
            for a, b, length in chunks:
                a, b = a * k, b * k
                scores = torch.baddbmm(
                    bias[a:b, :, :length],
                    q[a:b],
                    keys[a:b, :length].transpose(1, 2),
                    alpha=d**-0.5,
                )
                parts.append(torch.bmm(torch.softmax(scores, -1), values[a:b, :length]))
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
            return mixed.view(n, -1)

        slots = np.arange(n)
        hidden = self._layers(self._cache, self._to(tokens), slots, positions, attend)
        return self._logits(hidden)

    @torch.inference_mode()
    def score(self, rows: Sequence[list[int]], temperature: float) -> list[list[float]]:
        """Logprob of each token given those before it; the first of a row gets 0."""
        scratch = SlotCache(self.shape, self._dtype, self._device)
        result: list[list[float]] = []
        for row in rows:
            parts = range(0, len(row), _SCORE_TOKENS)
            hidden = torch.cat(
                [self._fill(scratch, 0, [row[a : a + _SCORE_TOKENS]], [a]) for a in parts]
            )
            logprobs = [0.0]
            step = max(1, _SCORE_ELEMENTS // self.vocab_size)
            for a in range(0, len(row) - 1, step):
                b = min(a + step, len(row) - 1)
                logits = self._logits(hidden[a:b]) / temperature
                following = torch.tensor(row[a + 1 : b + 1], device=self._device)
                picked = torch.log_softmax(logits, -1).gather(1, following[:, None])
                logprobs += picked[:, 0].tolist()
            result.append(logprobs[: len(row)])
        return result

    def _fill(
        self,
        cache: SlotCache,
        first_slot: int,
        rows: Sequence[list[int]],
        starts: list[int],
        *,
        only_last: bool = False,
    ) -> Tensor:
        """Fill slots; returns the last layer's output for all tokens [B * P, hidden].

        With `only_last` it is computed for the last token of each row alone [B, hidden]: nothing
        reads the others, and their keys and values are stored before.
        """
        count, width = len(rows), max(len(row) for row in rows)
        length = max(starts) + width
        cache.reserve(first_slot + count, length)
        ids = np.zeros((count, width), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        positions = np.asarray(starts)[:, None] + np.arange(width)  # [B, P]
        mask = torch.arange(length, device=self._device) <= self._to(positions)[:, None, :, None]
        ends = np.array([i * width + len(row) - 1 for i, row in enumerate(rows)])
        last = self._to(ends) if only_last else None
        last_mask = mask.view(-1, length)[self._to(ends)].view(count, 1, 1, length)

        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            seen = mask if len(q) == count * width else last_mask
            q = q.view(count, -1, self.shape.heads, self.shape.head_dim).transpose(1, 2)
            window = slice(first_slot, first_slot + count)
            mixed = F.scaled_dot_product_attention(
                q,
                keys[window, :, :length],
                values[window, :, :length],
                attn_mask=seen,
                enable_gqa=self.shape.heads != self.shape.kv_heads,
            )
            return mixed.transpose(1, 2).flatten(2).flatten(0, 1)

        slots = np.repeat(np.arange(first_slot, first_slot + count), width)
        return self._layers(cache, self._to(ids.ravel()), slots, positions.ravel(), attend, last)

    def _layers(
        self,
        cache: SlotCache,
        ids: Tensor,
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
        attend: Attend,
        last: Tensor | None = None,
    ) -> Tensor:
        """Run all layers; behind the keys and values of the last one, for rows `last` alone."""
        s, w = self.shape, self._weights
        x = F.embedding(ids, w.embed)  # [N, hidden]
        rope = self._rope_table(cache.length).index_select(0, self._to(positions))
        heads = np.arange(2)[:, None] * cache.slots * s.kv_heads + np.arange(s.kv_heads)
        places = (slots * s.kv_heads)[:, None, None] + heads  # [N, 2, K]
        target = self._to((places * cache.length + positions[:, None, None]).ravel())
        for layer, data in zip(w.layers, cache.data, strict=True):
            qkv = F.linear(self._norm(x, layer.norm_in), layer.qkv, layer.qkv_bias)
            q = self._rotate(qkv, layer, rope)
            stored = qkv[:, s.heads * s.head_dim :].reshape(-1, s.head_dim)
            data.view(-1, s.head_dim).index_copy_(0, target, stored)
            if last is not None and layer is w.layers[-1]:
                q, x = q[last], x[last]
            x = torch.addmm(x, attend(q, data[0], data[1]), layer.out)
            if layer.out_bias is not None:
                x += layer.out_bias
            x = self._mlp(x, layer)
        return x

    def _rotate(self, qkv: Tensor, layer: LayerWeights, rope: Tensor) -> Tensor:
        """Turn queries and keys in place; returns the queries [N, H, D]."""
        s = self.shape
        qk = qkv[:, : (s.heads + s.kv_heads) * s.head_dim].view(len(qkv), -1, s.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            qk[:, : s.heads] = self._norm(qk[:, : s.heads], layer.q_norm)
            qk[:, s.heads :] = self._norm(qk[:, s.heads :], layer.k_norm)
        pairs = qk.view(len(qkv), -1, s.head_dim // 2, 2)
        if self._dtype == torch.float32:
            torch.view_as_complex(pairs).mul_(rope)
        else:
            turned = torch.view_as_complex(pairs.float()) * rope
            pairs.copy_(torch.view_as_real(turned))
        return qk[:, : s.heads]

    def _mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        both = F.linear(self._norm(x, layer.norm_mlp), layer.gate_up, layer.gate_up_bias)
        gate, up = both.chunk(2, -1)
        x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        if layer.down_bias is not None:
            x += layer.down_bias
        return x

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:  # the rest is in the projection that follows
            return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        return F.rms_norm(x, weight.shape, weight, self.shape.eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._norm(hidden, self._weights.norm), self._weights.head).float()

    def _rope_table(self, length: int) -> Tensor:
        if len(self._rope) < length:
            rotary: Any = LlamaRotaryEmbedding(self._config)  # type: ignore[arg-type]
            probe = torch.empty(1)
            cos, sin = rotary(probe, torch.arange(length)[None])
            half = self.shape.head_dim // 2
            table = torch.complex(cos[0, :, :half], sin[0, :, :half])
            self._rope = table[:, None].to(self._device)
        return self._rope

    def _to(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
