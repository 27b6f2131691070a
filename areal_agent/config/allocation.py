"""Allocation strings: which backend runs a model, on how many devices, cut how.

``fsdp:d4``, ``sglang[rollout]:d2t4``, ``megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)``; and several
models in one string, as older settings have them: ``sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4``.
"""

from dataclasses import dataclass, replace

from areal_agent.config.parallelism import BACKENDS, ParallelStrategy, Role
from areal_agent.errors import ConfigError, NotInstalledError


@dataclass(frozen=True)
class ModelAllocation:
    """The backend and the devices of one model."""

    backend: str
    """One of `BACKENDS`."""

    name: str | None
    """What the model is called where there are several."""

    parallel: ParallelStrategy
    """How it is cut."""

    @classmethod
    def from_str(cls, text: str, name: str | None = None) -> "ModelAllocation":
        """Parse the allocation string of one model.

        Args:
            text: ``backend:dimensions`` or ``backend[name]:dimensions``; see the module.
            name: replaces the name in `text`.

        Raises:
            AllocationError: it does not parse or add up; a caret shows where.
        """
        from areal_agent.config.allocation_parser import parse_single

        allocation = parse_single(text)
        return replace(allocation, name=name) if name is not None else allocation

    @property
    def role(self) -> Role:
        """What the backend is for."""
        return BACKENDS[self.backend].role

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.parallel.world_size

    def __str__(self) -> str:
        name = f"[{self.name}]" if self.name is not None else ""
        return f"{self.backend}{name}:{self.parallel}"


@dataclass(frozen=True)
class AllocationPlan:
    """Several models: each group has devices of its own, the members of a group share them."""

    groups: tuple[tuple[ModelAllocation, ...], ...]
    """The groups, in the order of the string."""

    @property
    def allocations(self) -> tuple[ModelAllocation, ...]:
        """All models."""
        return tuple(allocation for group in self.groups for allocation in group)

    @property
    def world_size(self) -> int:
        """Devices in all; those that a group shares count once."""
        return sum(group[0].world_size for group in self.groups)

    def __getitem__(self, name: str) -> ModelAllocation:
        for allocation in self.allocations:
            if allocation.name == name:
                return allocation
        names = [allocation.name for allocation in self.allocations if allocation.name]
        raise KeyError(f"expected one of {names}, got {name!r}")

    def __str__(self) -> str:
        return "+".join("|".join(map(str, group)) for group in self.groups)


def parse_allocations(text: str) -> AllocationPlan:
    """Parse one or several allocations; ``+`` separates models, ``|`` lets them share devices.

    Raises:
        AllocationError: it does not parse or add up; a caret shows where.
    """
    from areal_agent.config.allocation_parser import parse

    return parse(text)


def require_installed(allocation: ModelAllocation, role: Role) -> None:
    """Check that an allocation can run here.

    Raises:
        ConfigError: the backend is for another role, or cannot be spread like that.
        NotInstalledError: the backend is known but not part of this version.
    """
    name = allocation.backend
    here = {"rollout": "embedded", "actor": "local"}[role]
    if allocation.role != role:
        fitting = [backend.name for backend in BACKENDS.values() if backend.role == role]
        raise ConfigError(
            f"expected a backend for {role} ({', '.join(fitting)}), got {str(allocation)!r}: "
            f"{name} is for {allocation.role}"
        )
    if name != here:
        raise NotInstalledError(
            f"backend {name!r} is not installed yet: use {here!r}, for instance '{here}:d1'"
        )
    if name == "local" and allocation.world_size != 1:
        raise ConfigError(
            f"expected 'local:d1', got {str(allocation)!r}: local trains on one device"
        )


def __getattr__(name: str) -> object:
    if name == "AllocationMode":
        raise AttributeError(
            "AllocationMode is gone: parse one model's string with ModelAllocation.from_str, "
            "several in one string with parse_allocations"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
