"""A gateway over a scripted engine, and a word tokenizer whose ids tests can read."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from areal_agent.data.chat import ChatFormat
from areal_agent.data.tokenizer import build_word_tokenizer
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.session import Session
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import GenerationHyperparameters, ModelRequest

CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + (c.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

GCONFIG = GenerationHyperparameters(max_new_tokens=64, max_tokens=512)
USER = {"role": "user", "content": "hi"}


def make_chat(template: str = CHATML) -> ChatFormat:
    tokenizer = build_word_tokenizer(["user", "assistant", "ab"], chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return ChatFormat(tokenizer, "hermes")


@dataclass
class Stage:
    """What a test plays on. `says` are the texts of the next replies, ended unless cut."""

    chat: ChatFormat
    gateway: Gateway
    engine: FakeEngine
    says: list[Any] = field(default_factory=list)
    inside: ClassVar[bool] = True
    """Clients need no socket."""
    closed_at_the_end: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    @asynccontextmanager
    async def session(self, *, trained: bool = True, **gconfig: Any) -> AsyncGenerator[Session]:
        async with self.gateway.session(
            self.engine, GCONFIG.new(**gconfig), trained=trained
        ) as session:
            yield session

    def ids(self, text: str) -> list[int]:
        return self.chat.tokenizer.encode(text, add_special_tokens=False)


@asynccontextmanager
async def stage(
    *says: str | Reply | BaseException | Callable[[ModelRequest], Any],
    template: str = CHATML,
    **kwargs: Any,
) -> AsyncGenerator[Stage]:
    """A gateway whose engine says these things, one after the other, and then "ok"."""
    chat = make_chat(template)
    queue = list(says)

    def script(request: ModelRequest) -> Any:
        text = queue.pop(0) if queue else "ok"
        if callable(text):
            text = text(request)
        if not isinstance(text, str):
            return text
        return Reply(chat.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))

    engine = FakeEngine(script)
    async with Gateway(chat, model="policy", **kwargs) as gateway:
        playing = Stage(chat, gateway, engine, queue)
        try:
            yield playing
        finally:
            for close in playing.closed_at_the_end:
                await close()


@asynccontextmanager
async def scene(*says: Any, **kwargs: Any) -> AsyncGenerator[tuple[Stage, Session]]:
    """A stage and one session on it, for a minute."""
    async with (
        asyncio.timeout(60),
        stage(*says, **kwargs) as playing,
        playing.session() as session,
    ):
        yield playing, session


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def rest(events: AsyncIterator[Any]) -> list[Any]:
    """What is still to come."""
    return [event async for event in events]


def alive(pids: Path) -> list[int]:
    """Which of the processes named in a file run."""
    found: list[int] = []
    for pid in map(int, pids.read_text(encoding="utf-8").split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found
