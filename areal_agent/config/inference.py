"""Settings of the inference side: servers, their client, and the flow of rollouts."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from areal_agent.config.base import ConfigModel
from areal_agent.config.reward import RewardConfig
from areal_agent.config.rollout_limits import GroupConfig, LimitsConfig
from areal_agent.config.supervisor import SupervisorConfig

WeightUpdateMode = Literal["keep", "recompute", "abort"]


class ServerConfig(ConfigModel):
    """The embedded inference server."""

    host: str = "127.0.0.1"
    """Address to bind. A run gives its servers random keys."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the first server; the next ones count up. 0 lets the system choose."""

    max_running_requests: int = Field(default=128, ge=1)
    """Requests that decode together; one key-value cache slot each."""

    max_model_len: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and reply together. None takes the model's own limit."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and cache."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. `auto` takes CUDA when there is one."""

    threads: int = Field(default=1, ge=1)
    """CPU threads of torch in the server."""

    weight_update: WeightUpdateMode = "keep"
    """What running requests do at an update: `keep` goes on with the old cache, `recompute`
    fills it anew under the new weights, `abort` hands back what there is and the client resumes."""

    startup_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long a server may take until it answers."""

    max_restarts: int = Field(default=3, ge=0)
    """How often each server is started again when it dies or hangs. Its requests move to others, or
    wait. The run ends when none is left."""

    silence_timeout_seconds: float = Field(default=60.0, gt=0)
    """A server that answers no health check for so long hangs, and is killed."""

    update_timeout_seconds: float = Field(default=300.0, gt=0)
    """How long a server may take to load new weights."""


class InferenceConfig(ConfigModel):
    """Where replies come from."""

    type: Literal["embedded", "openai"] = "embedded"
    """`embedded` samples from `model` on servers that the run starts. `openai` asks an endpoint
    that speaks OpenAI's protocol: for ``areal-agent eval`` only."""

    base_url: str | None = None
    """Of type `openai`: where the endpoint is, such as ``http://localhost:8000/v1``."""

    model: str | None = None
    """Of type `openai`: what the endpoint calls the model. It replaces what agents say."""

    api_key_env: str | None = None
    """Of type `openai`: the environment variable that holds the key. None sends no key."""


class RolloutConfig(ConfigModel):
    """How episodes run and how far they may be ahead of training."""

    backend: str = "embedded:d1"
    """Allocation string of the inference servers; see the page on allocation strings."""

    max_concurrent_rollouts: int = Field(default=128, ge=1)
    """Most episodes in flight."""

    min_concurrent_rollouts: int = Field(default=1, ge=1)
    """When requests queue up at the servers, fewer episodes are in flight than
    max_concurrent_rollouts, but never fewer than this, nor than a group. The same number for both
    has the queues ignored."""

    consumer_batch_size: int = Field(default=16, ge=1)
    """Prompts (groups) in a training batch."""

    max_head_offpolicyness: int = Field(default=2, ge=0)
    """Most versions that a trained token may be behind. 0 is synchronous training."""

    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Total deadline of one model call, retries included."""

    max_consecutive_failures: int = Field(default=64, ge=1)
    """So many episodes failing in a row end the run, naming the commonest cause."""

    max_empty_rounds: int = Field(default=8, ge=1)
    """So many batches' worth of groups in a row without a usable one end the run."""

    limits: LimitsConfig = LimitsConfig()
    """What one episode may use."""

    group: GroupConfig = GroupConfig()
    """What happens to a group when some of its episodes fail."""

    should_accept: str | None = None
    """A function that says which finished groups are trained on: ``module:function`` or
    ``path/to/file.py:function``. It gets a `TrajectoryGroup`. None trains on all."""

    dynamic_sampling: bool = False
    """Drop groups whose rewards are all equal and run others in their place until the batch is
    full (DAPO). Otherwise they take up places in the batch, and the loss leaves them out."""

    reward: RewardConfig = RewardConfig()
    """How reward functions run."""

    supervisor: SupervisorConfig = SupervisorConfig()
    """What happens when a run makes no progress."""

    server: ServerConfig = ServerConfig()
    """The embedded inference server."""


EPISODE_ENV = (
    "OPENAI_BASE_URL",
    "OPENAI_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
)
"""Variables that an agent in a worker process finds the gateway by, set anew for each episode."""


class AgentWorkersConfig(ConfigModel):
    """Processes that agents run in, with `gateway.hosting: subprocess`."""

    n: int = Field(default=8, ge=1)
    """Most processes, and so most episodes that run at a time. They start as they are needed."""

    env: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    """Environment variables for agents. null hands on the run's own value, so that a secret need
    not stand in the settings. Of the run's other variables only those that programs need anyway
    are handed on; see the page on agents."""

    startup_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long a process may take until it has imported the agent."""

    @field_validator("env")
    @classmethod
    def _leaves_the_gateways_alone(cls, env: dict[str, str | None]) -> dict[str, str | None]:
        for name in env:
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"expected names of environment variables, got {name!r}")
            if name in EPISODE_ENV:
                raise ValueError(f"{name} is set for each episode: it leads to the gateway")
        return env


class GatewayConfig(ConfigModel):
    """Where agents that speak OpenAI's protocol find the policy, and how they are trained on."""

    host: str = "127.0.0.1"
    """Address to listen on. Each episode has a random key of its own. One that other machines can
    reach needs an admin key that the user chose."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on. 0 lets the system choose, once an agent asks for a URL."""

    admin_key_file: Path | None = None
    """Holds the key that starts online sessions, unless AREAL_AGENT_ADMIN_KEY does. Without both, a
    random key is made and written into the run folder."""

    max_requests: int | None = Field(default=None, ge=1)
    """Most calls under way at once; further ones are answered with status 429. None means 8 for
    each episode that may be in flight."""

    session_idle_seconds: float = Field(default=600.0, gt=0)
    """An online session without a call for so long ends with the outcome `timeout`."""

    agents_timeout_seconds: float = Field(default=86_400.0, gt=0)
    """When no online session is open and none was started for so long, those on offer end with
    the outcome `timeout`."""

    sampling: Literal["agent", "run"] = "agent"
    """Whose temperature, top_p, top_k and frequency_penalty training samples with: `agent` takes
    what a request says, `run` puts gconfig's in its place. Evaluation takes what a request says."""

    hosting: Literal["inline", "subprocess"] = "inline"
    """Where agents run: `inline` in the run's event loop, `subprocess` in processes of their own,
    for agents that are not async, may crash, or need an environment to themselves."""

    workers: AgentWorkersConfig = AgentWorkersConfig()
    """The processes, with `subprocess`."""

    turn_discount: float = Field(default=1.0, ge=0.0, le=1.0)
    """What a later turn's reward counts for, per turn before it."""

    export_style: Literal["concat", "individual"] = "concat"
    """`concat` trains on turns that extend each other as one row, `individual` on a row each."""

    audit_fraction: float = Field(default=0.01, ge=0.0, le=1.0)
    """Share of the turns of training episodes, those of workflows included, that the servers score
    again, to compare with what was recorded."""

    audit_tolerance: float | None = Field(default=None, gt=0)
    """A turn comes out the same when no token's logprob differs by more. None takes 0.01 for
    servers that compute in float32, and 0.5 for bfloat16."""

    audit_limit: int = Field(default=0, ge=0)
    """Turns that may come out differently; one more ends the run."""
