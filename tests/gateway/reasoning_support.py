"""Chats of models that think, in the manner of several families."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from gateway_support import Stage

from areal_agent.data.chat import ChatFormat
from areal_agent.data.tokenizer import build_word_tokenizer
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.session import Session
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import ModelRequest

_HEAD = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- set last = namespace(at=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set last.at = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
"""

_TAIL = """
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + (c.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

PLAIN = _HEAD + "{{- m.content }}" + _TAIL + "{# </think> #}"
"""Knows nothing of reasoning: what an assistant said stays."""

STRIPS = (
    _HEAD
    + """
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > last.at %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content.split('</think>')[-1] }}"""
    + _TAIL
)
"""Shows reasoning only since the last question, as Qwen3 does."""

FORGETS = _HEAD + "{{- m.content.split('</think>')[-1] }}" + _TAIL
"""Never shows reasoning again, as DeepSeek R1."""

OPENS = STRIPS.replace(
    "'<|im_start|>assistant\\n' }}{% endif", "'<|im_start|>assistant\\n<think>\\n' }}{% endif"
)
"""Begins each reply inside of reasoning."""


def make_thinker(template: str, **parsers: Any) -> ChatFormat:
    tokenizer = build_word_tokenizer(["user", "assistant", "think"], chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return ChatFormat(tokenizer, **parsers)


@asynccontextmanager
async def thinking(*says: str, template: str = STRIPS) -> AsyncGenerator[tuple[Stage, Session]]:
    """A session of a policy that says these things, one after the other, and then "ok"."""
    chat = make_thinker(template)
    queue: list[Any] = list(says)

    def script(request: ModelRequest) -> Reply:
        text = queue.pop(0) if queue else "ok"
        return Reply(chat.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))

    async with asyncio.timeout(60), Gateway(chat, model="policy") as gateway:
        playing = Stage(chat, gateway, FakeEngine(script), queue)
        async with playing.session(max_new_tokens=200, max_tokens=4096) as session:
            yield playing, session
