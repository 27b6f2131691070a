"""What the dense forward needs to know of a model, read from its transformers config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

DENSE_TYPES = ("llama", "qwen2", "qwen3")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class DenseShape:
    """Sizes and switches of a Llama, Qwen2 or Qwen3 model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def from_config(cls, config: PretrainedConfig) -> "DenseShape":
        """Read the sizes; call `why_not_dense` first."""
        c: Any = config
        kind = str(c.model_type)
        attention_bias = bool(getattr(c, "attention_bias", False))
        heads = int(c.num_attention_heads)
        return cls(
            layers=int(c.num_hidden_layers),
            hidden=int(c.hidden_size),
            heads=heads,
            kv_heads=int(getattr(c, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(c, "head_dim", None) or c.hidden_size // heads),
            ffn=int(c.intermediate_size),
            vocab=int(c.vocab_size),
            eps=float(c.rms_norm_eps),
            tied=bool(c.tie_word_embeddings),
            qkv_bias=kind == "qwen2" or attention_bias,
            out_bias=kind != "qwen2" and attention_bias,
            mlp_bias=kind == "llama" and bool(getattr(c, "mlp_bias", False)),
            qk_norm=kind == "qwen3",
        )

    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors that a checkpoint of this model holds."""
        tensors: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            tensors["lm_head.weight"] = (self.vocab, self.hidden)
        for layer in range(self.layers):
            for name, shape in self._layer().items():
                tensors[f"model.layers.{layer}.{name}"] = shape
        return tensors

    def _layer(self) -> Mapping[str, tuple[int, ...]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linears = {
            "self_attn.q_proj": (q, self.hidden, self.qkv_bias),
            "self_attn.k_proj": (kv, self.hidden, self.qkv_bias),
            "self_attn.v_proj": (kv, self.hidden, self.qkv_bias),
            "self_attn.o_proj": (self.hidden, q, self.out_bias),
            "mlp.gate_proj": (self.ffn, self.hidden, self.mlp_bias),
            "mlp.up_proj": (self.ffn, self.hidden, self.mlp_bias),
            "mlp.down_proj": (self.hidden, self.ffn, self.mlp_bias),
        }
        tensors: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
        }
        for name, (rows, columns, bias) in linears.items():
            tensors[f"{name}.weight"] = (rows, columns)
            if bias:
                tensors[f"{name}.bias"] = (rows,)
        if self.qk_norm:
            tensors["self_attn.q_norm.weight"] = (self.head_dim,)
            tensors["self_attn.k_norm.weight"] = (self.head_dim,)
        return tensors


def why_not_dense(config: PretrainedConfig) -> str | None:
    """Return what keeps a model off the dense forward, or None when it fits."""
    c: Any = config
    rope: Mapping[str, Any] = getattr(c, "rope_parameters", None) or {}
    rope_type = str(rope.get("rope_type", "default"))
    layer_types = set(getattr(c, "layer_types", None) or ["full_attention"])
    head_dim = getattr(c, "head_dim", None) or 2
    reasons = {
        f"model type {c.model_type!r}": c.model_type not in DENSE_TYPES,
        f"activation {getattr(c, 'hidden_act', None)!r}": getattr(c, "hidden_act", None) != "silu",
        f"rope type {rope_type!r}": rope_type not in _STATIC_ROPE,
        "partial rotary embedding": float(rope.get("partial_rotary_factor", 1.0)) != 1.0,
        f"attention of types {sorted(layer_types)}": layer_types != {"full_attention"},
        "odd head size": int(head_dim) % 2 != 0,
        "quantised weights": getattr(c, "quantization_config", None) is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
