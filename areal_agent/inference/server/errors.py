"""What clients of the server are told when the engine fails."""

from areal_agent.errors import EngineFault, InferenceError, WeightUpdateError
from areal_agent.net.api_error import ApiError


def as_api_error(error: InferenceError) -> ApiError:
    """What a client is told of an error of the engine."""
    if isinstance(error, WeightUpdateError):
        return ApiError(str(error), status=409, code="weight_update_failed")
    if isinstance(error, EngineFault):
        return ApiError(str(error), status=503, type="server_error", code="engine_fault")
    return ApiError(str(error), status=500, type="server_error")
