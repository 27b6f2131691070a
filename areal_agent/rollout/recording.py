"""The engine as one episode sees it: every call recorded, every call with a seed of its own."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from areal_agent.errors import InferenceError, WeightUpdateError
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.limits import EpisodeLimits
from areal_agent.rollout.live import LiveEpisode, doing
from areal_agent.rollout.plain import error_facts
from areal_agent.types import Interaction, ModelRequest, ModelResponse, Scores, Tape, TokenSink


class EpisodeEngine:
    """Passes calls on to the run's engine and keeps what came back.

    Each call samples with a seed derived from the episode and the number of the call, so that a
    run repeats while members of a group differ.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        episode_id: str,
        call_seed: Callable[[int, int | None], int],
        tape: Tape,
        limits: EpisodeLimits,
    ) -> None:
        """Wrap the run's engine.

        Args:
            engine: samples the replies.
            episode_id: of the episode.
            call_seed: gives the seed of a call by its number.
            tape: hears of each call.
            limits: what the episode may use.
        """
        self._limits = limits
        self._tape = tape
        self._engine = engine
        self._episode_id = episode_id
        self._call_seed = call_seed
        self.live: LiveEpisode | None = None
        """Knows whether the episode is over although its code still runs: then it gets no calls."""
        self._turns = 0
        self._closed = False
        self.interactions: list[Interaction] = []
        """Finished calls, in the order in which they finished."""

    @property
    def version(self) -> int:
        """Version of the weights that the next token will be sampled from."""
        return self._engine.version

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        """See `InferenceEngine.agenerate`. `request.metadata` may hold ``messages``, for display.

        Raises:
            LimitReached: the episode may call the model no more.
            InferenceError: also when the episode is over.
        """
        if self._closed or (self.live is not None and self.live.must_end):
            raise InferenceError(
                f"episode {self._episode_id} has ended: await every model call in arun_episode"
            )
        asked = request.gconfig
        most = self._limits.begin_call(asked)
        turn, self._turns = self._turns, self._turns + 1
        update: dict[str, int] = {"seed": self._call_seed(turn, asked.seed)}
        if most < asked.max_new_tokens:
            update |= {"max_new_tokens": most, "min_new_tokens": min(asked.min_new_tokens, most)}
        request = replace(
            request,
            gconfig=asked.model_copy(update=update),
            metadata={**request.metadata, "episode_id": self._episode_id, "turn": turn},
        )
        call = self._tape.begin("model", "model")
        call.request = request
        try:
            with doing(f"model call {turn}"):
                call.response = await self._engine.agenerate(request, on_tokens=on_tokens)
        except Exception as error:
            call.error = error_facts(error)
            self._tape.end(call)
            raise
        self._tape.end(call)
        self._limits.end_call(asked, most, call.response)
        if not self._closed:
            self._keep(request, call.response)
        return call.response

    def _keep(self, request: ModelRequest, response: ModelResponse) -> None:
        prompt = list(response.input_tokens)
        messages = request.metadata.get("messages", ())
        self.interactions.append(
            Interaction(
                id=f"{self._episode_id}:{len(self.interactions)}",
                parent_id=self._parent_of(prompt),
                messages=cast("Sequence[dict[str, object]]", messages),
                reply={},
                response=response,
                gconfig=request.gconfig,
            )
        )

    def _parent_of(self, prompt: list[int]) -> str | None:
        for call in reversed(self.interactions):
            before = [*call.response.input_tokens, *call.response.output_tokens]
            if prompt[: len(before)] == before:
                return call.id
        return None

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """See `InferenceEngine.score`."""
        return await self._engine.score(rows, temperature=temperature)

    async def update_weights(self, path: Path, version: int) -> None:
        """Refused: an episode does not change weights."""
        raise WeightUpdateError(
            f"episode {self._episode_id} asked to load version {version} from {path}: only the "
            "trainer publishes weights"
        )

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Refused: an episode does not pause the run."""
        raise InferenceError(f"episode {self._episode_id} asked to pause the engine")

    def close(self) -> None:
        """Take no more calls and record nothing more: the episode is over."""
        self._closed = True

    async def __aenter__(self) -> Self:
        """Return this; the run's engine is already up."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the run's engine up."""
