"""Every error this package raises on purpose.

::

    ArealAgentError
    ├── ConfigError (ValueError)              settings: wrong before anything starts
    │   ├── AllocationError                   a backend string that does not parse or add up
    │   └── NotInstalledError                 a backend or plug-in that is known but absent
    ├── DataError (ValueError)                a dataset, a message list or a tokenizer is unusable
    ├── TrajectoryError (ValueError)          what a workflow returned cannot be trained on
    ├── InferenceError (RuntimeError)         no tokens could be had
    │   ├── RequestError                      the server refused the request (4xx): do not retry
    │   │   └── LimitReached                  the episode has used what it may use
    │   ├── ServerError                       the server failed or could not be reached: retried
    │   ├── EngineFault                       the engine broke; every waiting request fails with it
    │   └── WeightUpdateError                 new weights were not loaded; the old ones still serve
    ├── AgentError (RuntimeError)             an agent failed in its worker process, or ended it
    ├── CaptureError (RuntimeError)           what was recorded is not what the weights say
    ├── RewardError (RuntimeError)            a reward could not be computed
    │   ├── RewardTimeoutError                its function took longer than it may
    │   └── RewardCrashError                  its function ended the process that it ran in
    ├── SessionTimeout (TimeoutError)         an agent from elsewhere did not come, or went silent
    ├── RolloutError (RuntimeError)           no batch can be formed
    ├── StallError (RuntimeError)             the run made no progress for too long
    ├── TrainError (RuntimeError)             the trainer cannot go on
    │   ├── FirstStepError                    the trainer does not see what the servers sampled
    │   └── NonFiniteError                    too many non-finite gradients, or non-finite weights
    └── LaunchError (RuntimeError)            a process of ours did not start, or died

The command line exits with an error's `exit_code`.

A message says what was expected, what was got (``repr``), and what to do. Errors stay picklable:
extra facts are attributes set after construction by keyword, with defaults.
"""


class ArealAgentError(Exception):
    """Root of all errors raised on purpose by this package."""

    exit_code = 1


class ConfigError(ArealAgentError, ValueError):
    """The settings are wrong; nothing has been started."""

    exit_code = 2


class AllocationError(ConfigError):
    """A backend string does not parse, or its numbers do not add up."""

    def __init__(self, message: str, *, text: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.text = text
        self.position = position


class NotInstalledError(ConfigError):
    """A backend or plug-in has a known name but is not available here."""


class DataError(ArealAgentError, ValueError):
    """A dataset, a message list or a tokenizer is unusable as it stands."""


class TrajectoryError(ArealAgentError, ValueError):
    """What a workflow returned cannot be trained on."""


class InferenceError(ArealAgentError, RuntimeError):
    """No tokens could be had from the inference engine."""


class RequestError(InferenceError):
    """The server refused the request for what it says; retrying cannot help."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class LimitReached(RequestError):
    """The episode has used all that it may; the settings say what becomes of it."""


class ServerError(InferenceError):
    """The server failed or could not be reached, also after retries."""


class EngineFault(InferenceError):
    """The engine broke; each waiting request fails with the same cause."""


class WeightUpdateError(InferenceError):
    """New weights were not loaded; the old ones are still served."""


class AgentError(ArealAgentError, RuntimeError):
    """An agent failed in its worker process, or the process ended under it."""


class CaptureError(ArealAgentError, RuntimeError):
    """Recorded logprobs are not those of the weights that are said to have sampled the tokens."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path
        """The file that holds what differs."""


class RewardError(ArealAgentError, RuntimeError):
    """A reward could not be computed; the episode is not trained on."""


class RewardTimeoutError(RewardError):
    """A reward function took longer than it may, and was stopped."""


class RewardCrashError(RewardError):
    """A reward function ended the worker process that it ran in."""


class SessionTimeout(ArealAgentError, TimeoutError):
    """An agent that lives elsewhere did not come in time, or was silent for too long."""


class RolloutError(ArealAgentError, RuntimeError):
    """No batch can be formed from what the episodes give."""

    exit_code = 3


class StallError(ArealAgentError, RuntimeError):
    """The run made no progress for too long; who was waited for is in the report."""

    exit_code = 4

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path
        """The report."""


class TrainError(ArealAgentError, RuntimeError):
    """The trainer cannot go on."""


class FirstStepError(TrainError):
    """Servers and trainer have the same weights and disagree about what was sampled."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path
        """The file that holds what differs."""


class NonFiniteError(TrainError):
    """Gradients or weights are not finite; nothing was published or saved."""


class LaunchError(ArealAgentError, RuntimeError):
    """A process of ours did not start in time, or died."""
