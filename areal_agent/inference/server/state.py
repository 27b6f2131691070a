"""What the routes share: the engine, the tokenizer, names and keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_agent.data.chat import ChatFormat
from areal_agent.inference.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class ServerState:
    """Facts of one server. Its parts are owned by whoever made it."""

    engine: Engine
    tokenizer: Any
    chat: ChatFormat | None
    """None when the model has no chat template."""
    model: str
    """Name under which the model is served."""
    instance_id: str
    eos_ids: frozenset[int]
    control_key: str
    api_key: str | None = None
    """Key that the data plane asks for; None asks for none."""
    token_texts: dict[int, str] = field(default_factory=dict[int, str])
    """Text of single tokens, filled as they are met; never larger than the vocabulary."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Text of each token by itself."""
        known = self.token_texts
        for i in ids:
            if i not in known:
                known[i] = self.tokenizer.decode([i])
        return [known[i] for i in ids]
