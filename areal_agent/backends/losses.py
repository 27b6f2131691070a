"""From the name of a loss to the loss: what a worker process does with the spec it is sent."""

from areal_agent.algorithms.base import Loss
from areal_agent.algorithms.build import build_loss
from areal_agent.backends.base import LossSpec


def loss_from_spec(spec: LossSpec) -> Loss:
    """Make the loss that `spec` names, from the algorithm registry.

    Raises:
        ConfigError: the name is unknown, or the settings do not fit it.
    """
    return build_loss(spec.name, spec.settings)
