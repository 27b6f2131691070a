"""Messages to token ids and back, through the model's own chat template.

Tokens are truth. A dialogue starts with `ChatFormat.prompt_ids`; each later turn appends
`ChatFormat.continuation_ids` to the ids that were sent and sampled before. Nothing that was
sampled is ever tokenised again, so training sees the very ids that the engine saw.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, cast

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from areal_agent.data.call_ids import new_call_id
from areal_agent.data.messages import Message, Tools, clean_messages, clean_tools
from areal_agent.data.parsers.calls import ParsedReply
from areal_agent.data.reply_format import ReplyFormat
from areal_agent.data.tokenizer import load_tokenizer
from areal_agent.errors import DataError

logger = logging.getLogger(__name__)

_TAIL = 16
"""Tokens at the end of a prompt that may open the reasoning."""

_THOUGHT = "reasoning_content"

_REPLY = "\u241ereply\u241e"
"""Stands where a reply goes; no template or dialogue holds it."""


class ChatFormat:
    """How one model's dialogues are written as tokens."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        *,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """Check that the tokenizer can write dialogues.

        Args:
            tokenizer: with a chat template.
            tool_parser: name of the parser of tool calls. None takes the one that the model
                folder names under ``tool_parser`` in ``tokenizer_config.json``, or else what the
                tokenizer or its chat template shows.
            reasoning_parser: name of the way to reason, likewise.
            eos_token_ids: ids that end a reply, besides the tokenizer's and the template's own.

        Raises:
            DataError: there is no chat template, it fails on a plain dialogue, or the parser's
                name is unknown.
        """
        if not tokenizer.chat_template:
            raise DataError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template: put one into "
                "chat_template.jinja in the model folder"
            )
        self.tokenizer = tokenizer
        # The members of a group ask the same, one after the other.
        self._encoded = lru_cache(maxsize=1024)(self._encode_once)
        self._n_malformed = 0
        self._rendered = lru_cache(maxsize=512)(self._render_json)
        self.token_text = lru_cache(maxsize=None)(self._token_text)
        """Text of one token by itself; kept for each, so never more than the vocabulary has."""
        # Handing tools to a template that does not show them costs as much as rendering.
        self._shows_tools = "tools" in str(tokenizer.chat_template)
        self._tells_time = "strftime_now" in str(tokenizer.chat_template)
        after_reply = self._encode(self._after_reply([{"role": "user", "content": "?"}], [], None))
        first = after_reply[0] if after_reply else None
        self._end_of_turn = first if first in tokenizer.all_special_ids else None
        ids = {*eos_token_ids, self._end_of_turn, cast("int | None", tokenizer.eos_token_id)}
        self.eos_token_ids: frozenset[int] = frozenset(i for i in ids if i is not None)
        """Ids that end a reply."""
        self.replies = ReplyFormat(tokenizer, tool_parser, reasoning_parser, self.eos_token_ids)
        """How replies are read."""

    @classmethod
    def from_folder(
        cls, path: Path | str, tool_parser: str | None = None, reasoning_parser: str | None = None
    ) -> Self:
        """Read tokenizer, template, parsers' names and end-of-sequence ids of a model folder.

        Raises:
            DataError: the folder has no tokenizer or no chat template.
        """
        tokenizer = load_tokenizer(path)
        eos: object = None
        generation = Path(path) / "generation_config.json"
        if generation.is_file():
            eos = json.loads(generation.read_text(encoding="utf-8-sig")).get("eos_token_id")
        ids = cast("list[int]", eos if isinstance(eos, list) else [] if eos is None else [eos])
        return cls(tokenizer, tool_parser, reasoning_parser, eos_token_ids=ids)

    def prompt_ids(self, messages: object, tools: object = None) -> list[int]:
        """Ids of a dialogue, up to where the model's next reply starts.

        Args:
            messages: chat messages, as a list or as JSON text.
            tools: tool schemas for the template, as a list or as JSON text.

        Raises:
            DataError: the messages are malformed, or the template refuses them.
        """
        return self._encode(self._render(clean_messages(messages), clean_tools(tools)))

    def continuation_ids(
        self,
        messages: object,
        new_messages: object,
        tools: object = None,
        *,
        closed: bool = True,
    ) -> list[int]:
        """Ids to append after a sampled reply: the new messages and the start of the next reply.

        Args:
            messages: the dialogue that the reply answered.
            new_messages: what comes after the reply.
            tools: as in `prompt_ids`.
            closed: the reply ends with one of `eos_token_ids`; if not, the end of turn is
                put first.

        Raises:
            DataError: the template writes earlier messages differently once later ones are there,
                or refuses the messages.
        """
        history, new = clean_messages(messages), clean_messages(new_messages)
        ids = self._encode(self._after_reply(history, new, clean_tools(tools)))
        return ids[1:] if closed and ids[:1] == [self._end_of_turn] else ids

    def check_reasoning(
        self, dialogue: Sequence[Message], new_messages: object, tools: object = None
    ) -> None:
        """Make sure that the template keeps the reasoning of earlier replies.

        A template may show reasoning under its own name or within the text; both count.

        Args:
            dialogue: replies with their ``reasoning_content``.
            new_messages: what comes after it.
            tools: as in `prompt_ids`.

        Raises:
            DataError: the template drops the reasoning of a reply once the new messages are there.
        """
        reasoning = self.replies.reasoning
        marks = {i: f"\u241ethought {i}\u241e" for i, m in enumerate(dialogue) if m.get(_THOUGHT)}
        if reasoning is None or not marks:
            return
        new, schemas = clean_messages(new_messages), clean_tools(tools)
        apart, inside = list(dialogue), list(dialogue)
        for i, mark in marks.items():
            apart[i] = {**dialogue[i], _THOUGHT: mark}
            inside[i] = _without_reasoning(dialogue[i])
            inside[i]["content"] = reasoning.joined(mark, dialogue[i].get("content", ""))
        for written in (apart, inside):
            text = self._render(clean_messages([*written, *new]), schemas)
            if all(mark in text for mark in marks.values()):
                return
        raise DataError(_rewrites([*dialogue, *new]))

    def supervised_ids(
        self, messages: object, tools: object = None
    ) -> tuple[list[int], list[bool]]:
        """Ids of a finished dialogue, and which of them a model should learn to write.

        The ids are cut as in a rollout: prompt, reply with its end of turn, continuation, reply.

        Raises:
            DataError: as `continuation_ids`; or there is no assistant message.
        """
        dialogue, schemas = clean_messages(messages), clean_tools(tools)
        ids: list[int] = []
        mask: list[bool] = []
        done = ""
        for i, message in enumerate(dialogue):
            if message["role"] != "assistant":
                continue
            before = self._render(dialogue[:i], schemas)
            after = self._render(dialogue[: i + 1], schemas, open_reply=False)
            if not before.startswith(done) or not after.startswith(before):
                raise DataError(_rewrites(dialogue[: i + 1]))
            reply = after[len(before) :]
            end = self._turn_text()
            reply = reply[: reply.rindex(end) + len(end)] if end and end in reply else reply
            for text, learnt in ((before[len(done) :], False), (reply, True)):
                part = self._encode(text)
                ids += part
                mask += [learnt] * len(part)
            done = before + reply
        if not ids:
            raise DataError("expected a dialogue with an assistant message, got none in it")
        return ids, mask

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Tell whether a prompt ends inside of reasoning, so that the reply begins there."""
        reasoning = self.replies.reasoning
        return reasoning is not None and reasoning.is_opened(self.decode(prompt_ids[-_TAIL:]))

    def parse(
        self, output_ids: Sequence[int], tools: object = None, *, prompt_ids: Sequence[int] = ()
    ) -> ParsedReply:
        """Read the reasoning and the calls in a sampled reply, and the text beside them.

        Args:
            output_ids: what was sampled.
            tools: what may be called; some parsers take the types of arguments from it.
            prompt_ids: what it was sampled after; it may have opened the reasoning.
        """
        text = self.replies.visible(self._without_end(output_ids))
        opened = self.opens_reasoning(prompt_ids)
        parsed = self.replies.read(text, clean_tools(tools), opened=opened)
        if parsed.is_malformed:
            self.note_malformed(text)
        return parsed

    def note_malformed(self, text: str) -> None:
        """Warn of a malformed call: of the first, then of the 10th, the 100th and so on."""
        self._n_malformed += 1
        if self._n_malformed == 10 ** (len(str(self._n_malformed)) - 1):
            logger.warning(
                "%d replies so far look like tool calls but are none that can be run, and "
                "count as text; the newest: %.200r",
                self._n_malformed,
                text,
            )

    def parse_reply(
        self, output_ids: Sequence[int], tools: object = None, *, prompt_ids: Sequence[int] = ()
    ) -> Message:
        """Return the assistant message that sampled ids stand for.

        `content` is text; ``tool_calls`` is there only when all calls in it are well-formed, each
        with an id of its own and its arguments as JSON text; ``reasoning_content`` only when there
        is reasoning.
        """
        return self.message_of(self.parse(output_ids, tools, prompt_ids=prompt_ids))

    def message_of(self, parsed: ParsedReply) -> Message:
        """Return the assistant message of a parsed reply; each call gets an id of its own."""
        message: Message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.calls:
            message["tool_calls"] = [
                {
                    "id": new_call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in parsed.calls
            ]
        return message

    def reply_text(self, output_ids: Sequence[int]) -> str:
        """Text of a sampled reply, without the end of turn."""
        return self.decode(self._without_end(output_ids))

    def _without_end(self, output_ids: Sequence[int]) -> list[int]:
        ids = list(output_ids)
        while ids and ids[-1] in self.eos_token_ids:
            ids.pop()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return cast("str", self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _token_text(self, token: int) -> str:
        return self.decode([token])

    def _after_reply(self, history: list[Message], new: list[Message], tools: Tools) -> str:
        """What the template writes after the text of a reply that is followed by `new`."""
        reply: Message = {"role": "assistant", "content": _REPLY}
        history = [_without_reasoning(message) for message in history]  # see `check_reasoning`
        before = self._render(history, tools)
        whole = self._render([*history, reply, *new], tools, open_reply=bool(new))
        if not whole.startswith(before):
            # The start of a reply may hold more than the template keeps, such as open reasoning.
            before = self._render(history, tools, open_reply=False)
        if not whole.startswith(before) or whole.count(_REPLY) != 1:
            raise DataError(_rewrites([*history, *new]))
        return whole[whole.index(_REPLY) + len(_REPLY) :]

    def _turn_text(self) -> str:
        return "" if self._end_of_turn is None else self.decode([self._end_of_turn])

    def _render(
        self,
        messages: list[Message],
        tools: Tools,
        *,
        open_reply: bool = True,
    ) -> str:
        schemas = tools if self._shows_tools else None
        try:
            key = json.dumps((messages, schemas))
        except (TypeError, ValueError):
            key = None  # there is something in it that only the template understands
        if key is None or self._tells_time:
            return self._render_once(messages, schemas, open_reply)
        return self._rendered(key, open_reply)

    def _render_json(self, key: str, open_reply: bool) -> str:
        messages, schemas = json.loads(key)
        return self._render_once(messages, schemas, open_reply)

    def _render_once(self, messages: list[Message], schemas: Tools, open_reply: bool) -> str:
        try:
            # What apply_chat_template calls at last; the messages were cleaned here already, and
            # its own cleaning costs three times as much as rendering.
            texts, _ = cast("Any", render_jinja_template)(
                conversations=[messages],
                tools=schemas,
                chat_template=self.tokenizer.get_chat_template(None, cast("Any", schemas)),
                add_generation_prompt=open_reply,
                **self.tokenizer.special_tokens_map,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            roles = [message["role"] for message in messages]
            raise DataError(
                f"the chat template refuses messages with the roles {roles}: {error}"
            ) from error
        return cast("str", texts[0])

    def _encode(self, text: str) -> list[int]:
        return list(self._encoded(text))

    def _encode_once(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def _without_reasoning(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != _THOUGHT}


def _rewrites(messages: Sequence[Mapping[str, Any]]) -> str:
    roles = [message["role"] for message in messages]
    return (
        f"the chat template writes earlier messages differently once later ones are there (roles "
        f"{roles}), so a reply cannot be continued token for token: use a template that only "
        "appends"
    )
