"""What turns replies into the words of a protocol."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.session import Session

Emit = Callable[[Any], Awaitable[None]]
"""Sends one server-sent event."""

Style = TypeVar("Style")
"""How a dialect's answers are written, as far as the request says."""


class Writer(ABC, Generic[Style]):
    """Writes the answer to one call."""

    def __init__(self, session: Session, exchange: Exchange, model: str, style: Style) -> None:
        """Know what it is about.

        Args:
            session: what the call belongs to.
            exchange: gathers the replies.
            model: in whose name it is written.
            style: as the request asks for.
        """
        self._session = session
        self._exchange = exchange
        self._model = model
        self._style = style

    @abstractmethod
    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""

    @abstractmethod
    async def stream(self, emit: Emit) -> None:
        """The answer as events; they tell the same as the answer in one piece."""
