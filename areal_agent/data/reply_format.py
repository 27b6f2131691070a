"""How one model's replies are read: which parts are reasoning, text and calls."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolParser
from areal_agent.data.parsers.names import SCHEMA, detect_tool_parsers, get_tool_parser
from areal_agent.data.parsers.reasoning import Reasoning, detect_reasoning, get_reasoning
from areal_agent.data.parsers.schema_calls import (
    make_schema_parser,
    mentions,
    spec_of,
    thought_markers,
)
from areal_agent.data.parsers.splitter import ReplySplitter
from areal_agent.errors import DataError


class ReplyFormat:
    """Parsers of one model, by name or as its chat template and tokenizer show them."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tool_parser: str | None,
        reasoning_parser: str | None,
        eos_token_ids: Iterable[int],
    ) -> None:
        """Choose the parsers.

        Names are taken from here, then from ``tokenizer_config.json``; then the tokenizer's own
        ``response_template`` counts, and at last the chat template's text.

        Raises:
            DataError: a name is unknown.
        """
        self._tokenizer = tokenizer
        self._spec = spec_of(tokenizer)
        template = str(tokenizer.chat_template)
        named = tool_parser or cast("str | None", tokenizer.init_kwargs.get("tool_parser"))
        found = detect_tool_parsers(template)
        if named is None:
            named = SCHEMA if self._spec is not None else found[0] if len(found) == 1 else None
        self.tool_parser = named
        """Name of the parser of calls; None when none was named, and not one detected."""
        self.parser: ToolParser | None = self._parser(named)
        self.advice = (
            f"the chat template speaks of several ways to write calls ({', '.join(found)})"
            if found
            else "it is not known how this model writes calls"
        ) + ": name one under tool_parser in the settings, or serve with --tool-parser"
        """What to do where calls are wanted and there is no parser."""
        self.reasoning = self._reasoning(reasoning_parser, template)
        self._hidden = self._hidden_ids(eos_token_ids)

    def visible(self, ids: Sequence[int]) -> str:
        """Text of ids: of special tokens only those that parsers look for."""
        if self._hidden is None:
            return cast("str", self._tokenizer.decode(list(ids), skip_special_tokens=True))
        shown = [token for token in ids if token not in self._hidden]
        return cast("str", self._tokenizer.decode(shown, skip_special_tokens=False))

    def read(
        self, text: str, tools: Tools, *, opened: bool = False, may_call: bool = True
    ) -> ParsedReply:
        """Read a whole reply.

        Args:
            text: what `visible` gives.
            tools: what may be called, for the types of arguments.
            opened: the prompt opened the reasoning.
            may_call: if not, what looks like calls is text.
        """
        thought, content = "", text
        if self.reasoning is not None:
            thought, content = self.reasoning.split(text, opened=opened)
        parsed = ParsedReply(content)
        if may_call and self.parser is not None:
            try:
                parsed = self.parser.parse(content, tools)
            except RecursionError:  # arguments or schemas nested without end
                parsed = ParsedReply(content, is_malformed=True)
        return ParsedReply(parsed.content, parsed.calls, parsed.is_malformed, thought)

    def splitter(self, *, opened: bool, may_call: bool) -> ReplySplitter:
        """Read a reply as it grows; all pieces are what `read` gives."""
        return ReplySplitter(self.reasoning, self.parser if may_call else None, opened=opened)

    def n_reasoning_tokens(self, ids: Sequence[int]) -> int:
        """Of a reply that begins with reasoning: its tokens up to the end of that."""
        end = self.reasoning.end if self.reasoning is not None else ""
        if end not in self.visible(ids):
            return len(ids)
        return bisect_left(range(len(ids)), True, key=lambda n: end in self.visible(ids[:n]))

    def _parser(self, name: str | None) -> ToolParser | None:
        if name != SCHEMA:
            return None if name is None else get_tool_parser(name)
        if self._spec is None:
            raise DataError(
                f"tool_parser {SCHEMA!r}: the tokenizer {self._tokenizer.name_or_path!r} ships no "
                "response_template: name another parser"
            )
        return make_schema_parser(self._tokenizer)

    def _reasoning(self, name: str | None, template: str) -> Reasoning | None:
        name = name or cast("str | None", self._tokenizer.init_kwargs.get("reasoning_parser"))
        markers = thought_markers(self._spec) if self._spec is not None else None
        if name is None and markers is not None:
            return Reasoning(*markers)
        return get_reasoning(name or detect_reasoning(template))

    def _hidden_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int] | None:
        """Special tokens that no parser looks for; None when these are all of them."""
        tags = set(self.parser.tags if self.parser is not None else ())
        if self.reasoning is not None:
            tags |= {self.reasoning.begin, self.reasoning.end}
        own = self._spec if self.tool_parser == SCHEMA else None
        added = self._tokenizer.added_tokens_decoder.items()
        special = {token: str(content) for token, content in added if content.special}
        ends = set(eos_token_ids)
        kept = {
            token
            for token, text in special.items()
            if token not in ends and (text in tags or mentions(own, text))
        }
        return frozenset(special.keys() - kept) if kept else None
