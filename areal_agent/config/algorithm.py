"""Algorithms, by name. A name is a promise: its defaults are the published recipe."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from areal_agent.config.base import ConfigModel


class GrpoConfig(ConfigModel):
    """Group Relative Policy Optimization (Shao et al. 2024, arXiv:2402.03300), with the decoupled
    objective of AReaL (Fu et al. 2025, arXiv:2505.24298).
    """

    type: Literal["grpo"] = "grpo"
    """The algorithm's name."""

    normalize_by_std: bool = True
    """Divide advantages by the group's standard deviation. False is Dr. GRPO's choice."""

    std_eps: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""

    drop_zero_variance: bool = True
    """Leave out groups whose rewards are all equal: their advantage is exactly 0."""

    eps_clip: float = Field(default=0.2, gt=0, lt=1)
    """The ratio counts down to 1 - eps_clip."""

    eps_clip_higher: float | None = Field(default=None, gt=0)
    """The ratio counts up to 1 + this. None takes eps_clip; DAPO's clip-higher is 0.28."""

    use_decoupled_loss: bool = True
    """Clip against the weights at the start of the step, and weigh each token by how far those
    are from the ones that sampled it. False clips against the sampling weights."""

    behave_imp_weight_cap: float | None = Field(default=5.0, gt=1)
    """Tokens whose behaviour weight is above this are left out of the decoupled loss (they still
    count in the average). None keeps all; it is the default when use_decoupled_loss is false."""

    @property
    def clip_high(self) -> float:
        """The upper clip that is applied."""
        return self.eps_clip if self.eps_clip_higher is None else self.eps_clip_higher

    @model_validator(mode="before")
    @classmethod
    def _without_decoupling_no_cap(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("use_decoupled_loss") is False:
            return {"behave_imp_weight_cap": None, **values}
        return values

    @model_validator(mode="after")
    def _cap_needs_decoupling(self) -> Self:
        if not self.use_decoupled_loss and self.behave_imp_weight_cap is not None:
            raise ValueError(
                f"behave_imp_weight_cap {self.behave_imp_weight_cap} caps the decoupled weight, "
                "but use_decoupled_loss is false: set the first to null or the second to true"
            )
        return self


AlgorithmConfig = GrpoConfig
"""The union of all algorithms' settings, told apart by `type`."""
