"""`POST /v1/completions`: a prompt as text or ids, continued."""

import asyncio
import time
import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from areal_agent.aio import task_group
from areal_agent.inference.engine.request import Generation
from areal_agent.inference.engine.sampler import LOGPROBS_CONVENTION
from areal_agent.inference.engine.ticket import Ticket
from areal_agent.inference.server.exchange import Emit, EventStream, results
from areal_agent.inference.server.options import Options, check_prompt, read_options
from areal_agent.inference.server.reply import StreamedText, reply_text, usage
from areal_agent.inference.server.state import ServerState
from areal_agent.net.api_error import ApiError, json_response
from areal_agent.net.body import LONG_TEXT_BYTES, Body, check_ids

_DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> Response:
    """Answer one request."""
    state: ServerState = request.app.state.server
    body = await Body.read(request)
    prompt = await _prompt(body, state)
    wants_logprobs = body.integer("logprobs", -1, 0 if body.has("logprobs") else -1, 1) >= 0
    name = f"cmpl-{uuid.uuid4().hex}"
    options = read_options(
        body,
        state,
        new_id=name,
        max_tokens=body.integer("max_tokens", _DEFAULT_MAX_TOKENS, 1),
    )
    body.finish()
    answer = CompletionAnswer(state, options, prompt, wants_logprobs, name)
    tickets = options.submit(prompt, state.engine)
    if options.stream:
        return EventStream(tickets, lambda emit: answer.stream(tickets, emit))
    return json_response(answer.whole(await results(tickets, request.receive)))


async def _prompt(body: Body, state: ServerState) -> list[int]:
    prompt = body.take("prompt")
    if isinstance(prompt, str):
        if body.n_bytes <= LONG_TEXT_BYTES:
            return check_prompt(state.tokenizer.encode(prompt), state)
        return check_prompt(await asyncio.to_thread(state.tokenizer.encode, prompt), state)
    if prompt is None:
        raise ApiError("prompt: expected text or a list of token ids, got nothing", param="prompt")
    return check_prompt(check_ids("prompt", prompt, state.engine.vocab_size), state)


class CompletionAnswer:
    """Builds the answer to one completion request."""

    def __init__(
        self, state: ServerState, options: Options, prompt: list[int], logprobs: bool, name: str
    ) -> None:
        self._state = state
        self._options = options
        self._prompt = prompt
        self._logprobs = logprobs
        self._head = {
            "id": name,
            "object": "text_completion",
            "created": int(time.time()),
            "model": state.model,
            "logprobs_convention": LOGPROBS_CONVENTION,
        }

    def whole(self, found: list[Generation]) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            self._choice(
                i,
                reply_text(self._state, g),
                (g.token_ids, g.logprobs, g.versions),
                g.finish_reason,
                first=True,
            )
            for i, g in enumerate(found)
        ]
        return {**self._head, "choices": choices, "usage": usage(self._prompt, found)}

    async def stream(self, tickets: list[Ticket], emit: Emit) -> None:
        """The answer as events, the choices interleaved as their tokens come."""
        async with task_group() as group:
            for i, ticket in enumerate(tickets):
                group.create_task(self._stream_choice(i, ticket, emit))
        if self._options.include_usage:
            found = [await ticket.result() for ticket in tickets]
            await emit({**self._head, "choices": [], "usage": usage(self._prompt, found)})

    async def _stream_choice(self, index: int, ticket: Ticket, emit: Emit) -> None:
        text = StreamedText(self._state.decode, self._options.params)
        first = True
        async for part in ticket.parts():
            piece = text.push(part[0])
            if piece or first or self._asks_for_tokens:
                choice = self._choice(index, piece, part, None, first=first)
                await emit({**self._head, "choices": [choice]})
                first = False
        end = await ticket.result()
        choice = self._choice(index, text.rest(), ([], [], []), end.finish_reason, first=first)
        await emit({**self._head, "choices": [choice]})

    @property
    def _asks_for_tokens(self) -> bool:
        o = self._options
        return self._logprobs or o.return_token_ids or o.return_weight_versions

    def _choice(
        self,
        index: int,
        text: str,
        part: tuple[list[int], list[float], list[int]],
        finish_reason: str | None,
        *,
        first: bool,
    ) -> dict[str, Any]:
        ids, logprobs, versions = part
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "finish_reason": finish_reason,
            "logprobs": None,
        }
        if self._logprobs:
            choice["logprobs"] = {"tokens": self._state.texts(ids), "token_logprobs": logprobs}
        if self._options.return_token_ids:
            choice["token_ids"] = ids
            if first:
                choice["prompt_token_ids"] = self._prompt
        if self._options.return_weight_versions:
            choice["weight_versions"] = versions
        return choice
