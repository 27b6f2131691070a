"""A dialect: a protocol that agents speak, as one value; and what all dialects read alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from areal_agent.data.messages import Message, Tools
from areal_agent.gateway.answer import CHUNKS, Wire
from areal_agent.gateway.exchange import Call, Exchange
from areal_agent.gateway.requests import digest, take_notes
from areal_agent.gateway.sampling import read_sampling
from areal_agent.gateway.session import Session
from areal_agent.gateway.writer import Style, Writer
from areal_agent.net.body import Body


@dataclass(frozen=True, slots=True)
class Asked(Generic[Style]):
    """What a request asks for in its dialect's own words."""

    style: Style
    messages: Sequence[Message] = ()
    tools: Tools = None
    """What the policy may call."""
    prompt: str | list[int] | None = None
    """As in `Call`."""
    kept: Sequence[Message] | None = None
    """As in `Call`."""


@dataclass(frozen=True, slots=True)
class Dialect(Generic[Style]):
    """How requests of a protocol are read, and their answers written."""

    prefix: str
    """The ids of its answers start so."""
    read: Callable[[Body, Session], Asked[Style]]
    """Takes what no other dialect has from a request."""
    writer: Callable[[Session, Exchange, str, Style], Writer[Style]]
    """Writes the answer, in the name of a model."""
    wire: Wire = CHUNKS
    param: str = "messages"
    """Under which name a request holds what is to be answered."""
    notes: Sequence[str] = ()
    """Names of what changes nothing about an answer, besides those that all dialects have."""
    max_tokens: tuple[str, ...] = ("max_tokens",)
    """Under which names a request bounds the reply."""
    stop: str = "stop"
    """Under which name a request holds the stop strings."""
    max_choices: int = 1
    """Most replies that one answer can hold."""

    def call(self, body: Body, session: Session, *, is_retry: bool) -> tuple[Call, Style]:
        """Read a request.

        Args:
            body: the request; all of it is taken.
            session: what it belongs to.
            is_retry: the client says that it sent this before.

        Raises:
            ApiError: 400, naming the parameter that cannot be honoured.
        """
        key = digest(body, self.prefix)
        asked = self.read(body, session)
        take_notes(body, *self.notes)
        call = Call(
            messages=asked.messages,
            tools=asked.tools,
            prompt=asked.prompt,
            param=self.param,
            gconfig=session.settle(
                read_sampling(
                    body,
                    session.gconfig,
                    max_tokens=self.max_tokens,
                    stop=self.stop,
                    max_choices=self.max_choices,
                )
            ),
            digest=key,
            stream=body.boolean("stream"),
            is_retry=is_retry,
            kept=asked.kept,
        )
        body.finish()
        return call, asked.style


AnyDialect = Dialect[Any]
