"""The audit of what was captured: a share of the turns is scored again, and must come out the same.

A turn can be judged when one version sampled all of it and the same version still serves. Servers
forget what they cached at every update, so a turn that begins after one attends to nothing older,
however old the turns before it are.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from areal_agent.aio import task_group
from areal_agent.config.inference import GatewayConfig
from areal_agent.data.seeds import SEED_BITS, derive_seed
from areal_agent.errors import CaptureError, InferenceError
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.watched import WatchedEngine
from areal_agent.types import ModelRequest, ModelResponse, Scores

logger = logging.getLogger(__name__)

Dtype = Literal["float32", "bfloat16"]

TOLERANCES: dict[Dtype, float] = {"float32": 1e-2, "bfloat16": 0.5}
"""How far apart the same token's logprobs may be when it was decoded and when it is scored: orders
of magnitude above float32's rounding, and some times bfloat16's."""
MAX_WAITING = 256
"""Turns that wait to be scored; of more, the audit says that it did not look."""
MAX_RECORDED = 100
"""Mismatches that are written to disk."""
WORST_SHOWN = 8
"""Of a mismatch's tokens, those that are named."""
SCORE_SECONDS = 30.0
"""Of one turn, retries included."""
SETTLE_SECONDS = 5.0
"""How long new weights wait for the turns that only the old ones can judge."""

Verdict = Literal["exact", "mismatch", "unverifiable"]


@dataclass(slots=True, eq=False)
class _Turn:
    request: ModelRequest
    response: ModelResponse
    judged: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spans_versions(self) -> bool:
        return len(set(self.response.output_versions)) > 1

    @property
    def version(self) -> int:
        """Version of the weights that sampled it."""
        return self.response.output_versions[0]

    @property
    def temperature(self) -> float:
        """That of its logprobs: greedy replies have those at 1."""
        told = self.response.temperature
        return (self.request.gconfig.effective_temperature if told is None else told) or 1.0


class CaptureAudit:
    """Scores turns in the background, one at a time, and counts how they come out.

    Lifetime: an async context manager around the run. More mismatches than allowed end it with a
    `CaptureError`. Left in peace, it judges what waits first.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        config: GatewayConfig,
        evidence: Path,
        *,
        dtype: Dtype = "float32",
        score_seconds: float = SCORE_SECONDS,
    ) -> None:
        """Wire things up.

        Args:
            engine: scores.
            config: which share, how close, and how many may differ.
            evidence: where mismatches are written to, one JSON object a line.
            dtype: what the servers compute in; says how close, where `config` does not.
            score_seconds: deadline of one turn.
        """
        self._engine = engine
        self._config = config
        self._tolerance = config.audit_tolerance or TOLERANCES[dtype]
        self._evidence = evidence
        self._score_seconds = score_seconds
        self._queue: asyncio.Queue[_Turn] = asyncio.Queue(MAX_WAITING)
        self._newest: _Turn | None = None
        self._counts: Counter[Verdict] = Counter()
        self._since: Counter[Verdict] = Counter()
        self._abs_max = 0.0
        self._stack: AsyncExitStack | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def watched(self) -> InferenceEngine:
        """The engine for whose turns this is; the same one when nothing is to be scored."""
        if self._config.audit_fraction == 0:
            return self._engine
        return WatchedEngine(self._engine, self.hear)

    def chooses(self, request: ModelRequest) -> bool:
        """Tell whether the turn is one of the share: the same ones in each run of a seed."""
        chance = derive_seed("audit", request.gconfig.seed or 0) / 2**SEED_BITS
        return chance < self._config.audit_fraction

    def hear(self, request: ModelRequest, response: ModelResponse) -> None:
        """Take in a turn; it is scored soon, if it is chosen. Returns at once."""
        if not response.output_tokens or not self.chooses(request):
            return
        turn = _Turn(request, response)
        if turn.spans_versions or self._queue.full():
            self._count("unverifiable")
            return
        self._queue.put_nowait(turn)
        self._newest = turn

    async def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until the turns heard so far are judged, but not for long."""
        if self._newest is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._newest.judged.wait()
        except TimeoutError:
            logger.info("the audit is behind: %d turns wait to be scored", self._queue.qsize())

    def take_metrics(self) -> dict[str, float]:
        """Return what was counted since the last call; nothing when nothing is to be scored."""
        if self._config.audit_fraction == 0:
            return {}
        since, self._since = self._since, Counter()
        abs_max, self._abs_max = self._abs_max, 0.0
        return {
            "capture/exact": since["exact"],
            "capture/mismatch": since["mismatch"],
            "capture/unverifiable": since["unverifiable"],
            "capture/abs_max": abs_max,
        }

    async def _judge_all(self) -> None:
        while True:
            turn = await self._queue.get()
            self._count(await self._judge(turn))
            turn.judged.set()
            if self._counts["mismatch"] > self._config.audit_limit:
                raise self._error()

    async def _judge(self, turn: _Turn) -> Verdict:
        if turn.version < self._engine.version:
            return "unverifiable"
        row = [*turn.response.input_tokens, *turn.response.output_tokens]
        try:
            async with asyncio.timeout(self._score_seconds):
                scores = await self._engine.score([row], temperature=turn.temperature)
        except (InferenceError, TimeoutError) as error:
            logger.info("a turn could not be scored: %s: %s", type(error).__name__, error)
            return "unverifiable"
        if scores.version != turn.version:
            return "unverifiable"
        scored = scores.logprobs[0][len(turn.response.input_tokens) :]
        stored = turn.response.output_logprobs
        differences = [abs(a - b) for a, b in zip(stored, scored, strict=True)]
        self._abs_max = max(self._abs_max, *differences)
        if all(one <= self._tolerance for one in differences):  # nan is not
            return "exact"
        await self._record(turn, scores, scored, differences)
        return "mismatch"

    async def _record(
        self, turn: _Turn, scores: Scores, scored: Sequence[float], differences: Sequence[float]
    ) -> None:
        if self._counts["mismatch"] >= MAX_RECORDED:
            return
        line = json.dumps(_evidence(turn, scores, scored, differences)) + "\n"
        await asyncio.to_thread(_append, self._evidence, line)

    def _count(self, verdict: Verdict) -> None:
        self._counts[verdict] += 1
        self._since[verdict] += 1

    def _error(self) -> CaptureError:
        counts, config = self._counts, self._config
        return CaptureError(
            f"the servers give other logprobs for {counts['mismatch']} captured turns than were "
            f"recorded ({counts['exact']} came out the same, {counts['unverifiable']} could not be "
            f"judged): expected at most {config.audit_limit} (gateway.audit_limit) with a token "
            f"more than {self._tolerance:g} apart (gateway.audit_tolerance). What differs is "
            f"in {self._evidence}: a server that samples from other weights or at another "
            "temperature than it says, or a dtype that needs a wider tolerance",
            path=str(self._evidence),
        )

    async def __aenter__(self) -> Self:
        """Start to score."""
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(task_group())
            self._work = group.create_task(self._judge_all(), name="capture audit")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Judge what waits, unless the run failed, and stop."""
        assert self._stack is not None
        assert self._work is not None
        try:
            if exc is None:
                await self.settle()
        finally:
            self._work.cancel()
            await self._stack.__aexit__(exc_type, exc, traceback)


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def _evidence(
    turn: _Turn, scores: Scores, scored: Sequence[float], differences: Sequence[float]
) -> dict[str, Any]:
    response = turn.response
    # What is not a number comes first; nan would sort anywhere.
    order = sorted(range(len(differences)), key=lambda i: (differences[i] >= 0, -differences[i]))
    return {
        "episode_id": turn.request.metadata.get("episode_id"),
        "turn": turn.request.metadata.get("turn"),
        "request_id": turn.request.rid,
        "temperature": turn.temperature,
        "version": scores.version,
        "prompt_ids": list(response.input_tokens),
        "output_ids": list(response.output_tokens),
        "versions": list(response.output_versions),
        "stored_logprobs": list(response.output_logprobs),
        "scored_logprobs": list(scored),
        "worst": [
            {
                "position": i,
                "token": response.output_tokens[i],
                "stored": response.output_logprobs[i],
                "scored": scored[i],
                "difference": differences[i],
            }
            for i in order[:WORST_SHOWN]
        ],
    }
