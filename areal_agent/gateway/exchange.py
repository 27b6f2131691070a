"""One request of an agent while it is answered, and afterwards, for those who ask again."""

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from areal_agent.aio import Flag
from areal_agent.data.messages import Message, Tools
from areal_agent.gateway.conversation import Plan, Turn
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.tape import Tape
from areal_agent.types import GenerationHyperparameters


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent asks for, whatever protocol it speaks."""

    messages: Sequence[Message]
    tools: Tools
    gconfig: GenerationHyperparameters
    """Effective sampling settings; `n_samples` replies are wanted."""
    digest: bytes
    """Of the request as it was sent: the same request has the same one."""
    prompt: str | list[int] | None = None
    """Text or ids to be continued as they are, where there are no messages."""
    param: str = "messages"
    """Under which name the request holds its messages, for errors."""
    stream: bool = False
    """Tokens are wanted as they come."""
    is_retry: bool = False
    """The client says that it sent this before."""
    kept: Sequence[Message] | None = None
    """What a later call that names this one goes on from, with the reply; None: none may."""


class Exchange:
    """Gathers the replies to one call.

    Anybody may wait for it; it counts as delivered once one of them has sent all of it on.
    """

    def __init__(self, call: Call, plan: Plan, *, prefix: str) -> None:
        self.id = f"{prefix}{secrets.token_hex(16)}"
        self.created = int(time.time())
        self.call = call
        self.plan = plan
        self.tapes = [Tape() for _ in range(call.gconfig.n_samples)]
        self.turns: list[Turn] = []
        """In the order of the choices, once all are there."""
        self.replies: list[Reply] = []
        self.error: Exception | None = None
        self.readers = 0
        self.delivered = False
        self._over = Flag()

    @property
    def is_over(self) -> bool:
        """Whether it ended, well or not."""
        return self._over.is_set()

    @property
    def n_tokens(self) -> tuple[int, int]:
        """Tokens of the prompt, and those sampled, over all choices."""
        return len(self.plan.prompt_ids), sum(len(t.response.output_tokens) for t in self.turns)

    def turn_id(self, choice: int) -> str:
        """Name of the turn that is one of the choices: the answer's own id when there is one."""
        return self.id if len(self.tapes) == 1 else f"{self.id}-{choice}"

    def finish(self, turns: Sequence[Turn], replies: Sequence[Reply]) -> None:
        """All replies are there."""
        self.turns, self.replies = list(turns), list(replies)
        self._end()

    def fail(self, error: Exception) -> None:
        """Nothing came of it: those who wait get `error`. Too late when it is over."""
        if not self.is_over:
            self.error = error
            self._end()

    async def started(self) -> None:
        """Wait for the first token.

        Raises:
            Exception: the call failed before.
        """
        await self.tapes[0].started()
        if self.error is not None:
            raise self.error

    async def result(self) -> list[Reply]:
        """Wait for all replies.

        Raises:
            Exception: what the call failed with.
        """
        await self._over.wait()
        if self.error is not None:
            raise self.error
        return self.replies

    def deliver(self) -> None:
        """A client has received all of it."""
        self.delivered = True
        for turn in self.turns:
            turn.delivered = True

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count as somebody who waits for it while the body runs."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    def _end(self) -> None:
        for tape in self.tapes:
            tape.end()
        self._over.set()
