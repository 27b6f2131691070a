"""Weights of the dense forward: read from a folder, checked, fused, ready to be swapped in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_agent.errors import WeightUpdateError
from areal_agent.inference.engine.shape import DenseShape


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, with projections that share an input fused into one matrix."""

    norm_in: Tensor | None
    """None when it is folded into `qkv`, see `fuse`."""
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    """Transposed: [heads * head_dim, hidden]."""
    out_bias: Tensor | None
    norm_mlp: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    """Transposed: [ffn, hidden]."""
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """All weights of a model. Never changed in place: an update swaps the whole object."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def read_state(folder: Path) -> dict[str, Tensor]:
    """Read every safetensors file of a Hugging Face folder.

    Raises:
        WeightUpdateError: no such folder, no weights in it, or a file that does not parse.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [folder / name for name in names]
        else:
            files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise WeightUpdateError(
                f"expected a folder with *.safetensors files, got {str(folder)!r} with none: "
                "export the weights there first"
            )
        state: dict[str, Tensor] = {}
        for file in files:
            state.update(load_file(file))
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError) as error:
        raise WeightUpdateError(
            f"could not read the weights in {str(folder)!r}: {type(error).__name__}: {error}"
        ) from error
    return state


def check_state(state: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that are not those of this model.

    Raises:
        WeightUpdateError: a tensor is missing, unknown, of another shape, or not finite.
    """
    optional = {"lm_head.weight"}  # may be stored although it is tied to the embedding
    missing = [name for name in expected if name not in state]
    unknown = [
        name
        for name in state
        if name not in expected and name not in optional and not name.endswith("inv_freq")
    ]
    if missing or unknown:
        raise WeightUpdateError(
            "the weights are of another model: "
            f"missing {_some(missing)}, not expected {_some(unknown)}; "
            "export them from the model that is served"
        )
    head = state.get("lm_head.weight")
    if head is not None and "lm_head.weight" not in expected:
        embed = state["model.embed_tokens.weight"]
        if head.shape != embed.shape or not torch.equal(head, embed):
            raise WeightUpdateError(
                "the model that is served ties its head to the embedding, but lm_head.weight and "
                "model.embed_tokens.weight differ: the weights are of another model"
            )
    for name, shape in expected.items():
        tensor = state[name]
        if tuple(tensor.shape) != shape:
            raise WeightUpdateError(
                f"expected {name} of shape {shape}, got {tuple(tensor.shape)}: "
                "the weights are of another model"
            )
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise WeightUpdateError(
                f"expected finite numbers in {name}, got NaN, infinity or {tensor.dtype}: "
                "the weights were not taken"
            )


def fuse(
    state: Mapping[str, Tensor], shape: DenseShape, dtype: torch.dtype, device: torch.device
) -> DenseWeights:
    """Arrange checked weights for the dense forward.

    In float32 on a CPU the norms before a projection are folded into it, times the square root of
    the width: what is left of a norm is then a division by a length. Elsewhere there is a kernel
    for the whole norm, and in bfloat16 folding would round once more.
    """

    def take(name: str) -> Tensor:
        return state[name].to(dtype=dtype)

    def place(tensor: Tensor) -> Tensor:
        return tensor.to(device).contiguous()

    embed = place(take("model.embed_tokens.weight"))
    return DenseWeights(
        embed=embed,
        layers=tuple(
            _fuse_layer(
                {
                    name.removeprefix(f"model.layers.{layer}."): place(tensor.to(dtype))
                    for name, tensor in state.items()
                    if name.startswith(f"model.layers.{layer}.")
                },
                shape,
                fold=folds(dtype, device),
            )
            for layer in range(shape.layers)
        ),
        norm=place(take("model.norm.weight")),
        head=embed if shape.tied else place(take("lm_head.weight")),
    )


def folds(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether norms are folded into the projections behind them."""
    return dtype == torch.float32 and device.type == "cpu"


def _fuse_layer(t: Mapping[str, Tensor], shape: DenseShape, *, fold: bool) -> LayerWeights:
    norm_in, norm_mlp = t["input_layernorm.weight"], t["post_attention_layernorm.weight"]
    root = shape.hidden**0.5
    order = _interleaved(shape.head_dim)

    def pairs(name: str) -> Tensor:  # rows of each head reordered, see _interleaved
        x = t[name]
        return x.view(-1, shape.head_dim, *x.shape[1:])[:, order].reshape(x.shape)

    def joined(kind: str) -> Tensor:
        q, k = pairs(f"self_attn.q_proj.{kind}"), pairs(f"self_attn.k_proj.{kind}")
        return torch.cat((q, k, t[f"self_attn.v_proj.{kind}"])).contiguous()

    def gate_up(kind: str) -> Tensor:
        return torch.cat((t[f"mlp.gate_proj.{kind}"], t[f"mlp.up_proj.{kind}"])).contiguous()

    return LayerWeights(
        norm_in=None if fold else norm_in,
        qkv=joined("weight").mul_(norm_in * root) if fold else joined("weight"),
        qkv_bias=joined("bias") if shape.qkv_bias else None,
        q_norm=t["self_attn.q_norm.weight"][order].contiguous() if shape.qk_norm else None,
        k_norm=t["self_attn.k_norm.weight"][order].contiguous() if shape.qk_norm else None,
        out=t["self_attn.o_proj.weight"].t(),
        out_bias=t["self_attn.o_proj.bias"] if shape.out_bias else None,
        norm_mlp=None if fold else norm_mlp,
        gate_up=gate_up("weight").mul_(norm_mlp * root) if fold else gate_up("weight"),
        gate_up_bias=gate_up("bias") if shape.mlp_bias else None,
        down=t["mlp.down_proj.weight"].t(),
        down_bias=t["mlp.down_proj.bias"] if shape.mlp_bias else None,
    )


def _interleaved(head_dim: int) -> Tensor:
    """Order that puts the two halves of a rotary pair next to each other.

    Queries and keys are reordered alike, so their products do not change, and the rotation becomes
    one complex multiplication.
    """
    half = head_dim // 2
    return torch.stack((torch.arange(half), torch.arange(half) + half), dim=1).flatten()


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "nothing"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
