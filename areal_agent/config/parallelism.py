"""How a model is spread over devices: sizes of each kind of parallelism, and who offers which."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["rollout", "actor"]
"""What a model is used for: sampling, or training."""

DIMENSIONS = {"d": "data", "p": "pipeline", "t": "tensor", "c": "context", "e": "expert"}
"""The letter of each dimension and the kind of parallelism it stands for."""


@dataclass(frozen=True)
class Backend:
    """What can run a model."""

    name: str
    """As in an allocation string."""

    role: Role
    """What it is for."""

    dimensions: str
    """The letters that it understands."""


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("embedded", "rollout", "d"),
        Backend("sglang", "rollout", "dpt"),
        Backend("vllm", "rollout", "dpt"),
        Backend("local", "actor", "d"),
        Backend("fsdp", "actor", "dtc"),
        Backend("megatron", "actor", "dptce"),
        Backend("archon", "actor", "dptce"),
    )
}
"""All backends that an allocation string may name, whether they are installed or not."""


@dataclass(frozen=True)
class ParallelStrategy:
    """Sizes of each kind of parallelism; the expert layers may be cut differently."""

    data_parallel_size: int = 1
    """Replicas, each with its share of the batch."""

    pipeline_parallel_size: int = 1
    """Stages that the layers are cut into."""

    tensor_parallel_size: int = 1
    """Devices that share each matrix (of attention, where the expert layers differ)."""

    context_parallel_size: int = 1
    """Devices that share each sequence."""

    expert_parallel_size: int = 1
    """Devices that share the experts of a layer."""

    expert_tensor_parallel_size: int = 1
    """Devices that share each matrix of an expert."""

    def __post_init__(self) -> None:
        if self.cut_experts and self.world_size % self.expert_model_parallel_size:
            raise ValueError(
                f"the experts need a multiple of {self.expert_model_parallel_size} devices "
                f"(p{self.pp_size} x t{self.etp_size} x e{self.ep_size} of the expert layers), "
                f"but d·p·t·c is {self.world_size}"
            )

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.dp_size * self.pp_size * self.tp_size * self.cp_size

    @property
    def cut_experts(self) -> bool:
        """Whether the expert layers are cut otherwise than the rest."""
        return self.ep_size > 1 or self.etp_size > 1

    @property
    def expert_model_parallel_size(self) -> int:
        """Devices that hold one copy of the expert layers."""
        return self.pp_size * self.etp_size * self.ep_size

    @property
    def expert_data_parallel_size(self) -> int:
        """Replicas of the expert layers; those of the model when experts are not cut."""
        if not self.cut_experts:
            return self.dp_size
        return self.world_size // self.expert_model_parallel_size

    @property
    def dp_size(self) -> int:
        """Short for `data_parallel_size`."""
        return self.data_parallel_size

    @property
    def pp_size(self) -> int:
        """Short for `pipeline_parallel_size`."""
        return self.pipeline_parallel_size

    @property
    def tp_size(self) -> int:
        """Short for `tensor_parallel_size`."""
        return self.tensor_parallel_size

    @property
    def cp_size(self) -> int:
        """Short for `context_parallel_size`."""
        return self.context_parallel_size

    @property
    def ep_size(self) -> int:
        """Short for `expert_parallel_size`."""
        return self.expert_parallel_size

    @property
    def etp_size(self) -> int:
        """Short for `expert_tensor_parallel_size`."""
        return self.expert_tensor_parallel_size

    @property
    def edp_size(self) -> int:
        """Short for `expert_data_parallel_size`."""
        return self.expert_data_parallel_size

    def __str__(self) -> str:
        """Return the shortest dimensions that parse to this: ``d4t2``, ``(attn:d4t2|ffn:t4e2)``."""
        sizes = {"d": self.dp_size, "p": self.pp_size, "t": self.tp_size, "c": self.cp_size}
        if self.etp_size == 1:
            return _joined({**sizes, "e": self.ep_size})
        experts = {"d": self.edp_size, "p": self.pp_size, "t": self.etp_size, "e": self.ep_size}
        return f"(attn:{_joined(sizes)}|ffn:{_joined(experts)})"


def _joined(sizes: dict[str, int]) -> str:
    return "".join(f"{letter}{size}" for letter, size in sizes.items() if size != 1) or "d1"
