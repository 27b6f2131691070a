"""One episode at the gateway: its calls, its turns, its rewards, and its end."""

import asyncio
import contextvars
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from areal_agent.aio import collect
from areal_agent.data.chat import ChatFormat
from areal_agent.errors import DataError, InferenceError, RequestError
from areal_agent.gateway.conversation import Conversation, Plan, Turn
from areal_agent.gateway.exchange import Call, Exchange
from areal_agent.gateway.load import Load
from areal_agent.gateway.reply import Reply, read_reply
from areal_agent.gateway.sampling import Whose, for_training
from areal_agent.inference.base import InferenceEngine
from areal_agent.net.api_error import ApiError
from areal_agent.types import GenerationHyperparameters, ModelRequest

logger = logging.getLogger(__name__)

COUNTED = (
    "turns",
    "prefix_hits",
    "forks",
    "breaks/history",
    "breaks/tools",
    "breaks/template",
    "replays",
    "joins",
    "abandoned",
    "malformed_calls",
    "overruled",
)
"""What a session counts, besides ``undelivered`` answers."""

ABANDONED_SECONDS = 10.0
"""How long a reply goes on being sampled after the last client that waited for it has left: one
that retries joins it."""


class SessionSealed(ApiError):
    """The episode has ended: nothing changes it any more."""

    def __init__(self) -> None:
        super().__init__(
            "this session is sealed: its episode has ended, and nothing can be added to it",
            status=410,
            code="session_sealed",
        )


class Session:
    """Takes calls until it is sealed.

    Calls are sampled in tasks of `group`; sealing cancels them and waits for their end.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        chat: ChatFormat,
        gconfig: GenerationHyperparameters,
        group: asyncio.TaskGroup,
        *,
        trained: bool,
        sampling: Whose = "agent",
        abandoned_seconds: float = ABANDONED_SECONDS,
        load: Load | None = None,
    ) -> None:
        """Open it.

        Args:
            engine: samples the replies; the episode's own.
            chat: writes the model's dialogues.
            gconfig: what calls are sampled with, where they do not say.
            group: where tasks run.
            trained: the replies may be trained on.
            sampling: whose settings go before then.
            abandoned_seconds: see `ABANDONED_SECONDS`.
            load: of all sessions.
        """
        self.key = f"sk-areal-{secrets.token_urlsafe(32)}"
        """Opens this session and nothing else."""
        self.path_name = secrets.token_urlsafe(32)
        """Stands for the key in a URL, for clients that cannot set one."""
        self.chat = chat
        self.gconfig = gconfig.new(n_samples=1)
        self.trained = trained
        self.conversation = Conversation(chat)
        self.is_sealed = False
        self.is_truncated = False
        """A prompt found no room in the context."""
        # What the calls of one episode share, also those that come over a socket.
        self._context = contextvars.copy_context()
        self._engine = engine
        self._group = group
        self._sampling: Whose = sampling
        self._abandoned_seconds = abandoned_seconds
        self._load = Load() if load is None else load
        self.on_tool_calls: Callable[[int], None] | None = None
        """Hears how many tools a reply calls; may raise `InferenceError`: then nobody gets it."""
        self._users = 0
        self._used_at = time.monotonic()
        self._exchanges: dict[bytes, list[Exchange]] = {}
        self._by_id: dict[str, Exchange] = {}
        self._tasks: dict[Exchange, asyncio.Task[None]] = {}
        self._drops: dict[Exchange, asyncio.TimerHandle] = {}
        self._rids: dict[Turn, str] = {}
        self._failed: dict[bytes, InferenceError] = {}
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """What happened, each of `COUNTED` by its name."""
        found = self.conversation.counts + self._counts
        undelivered = sum(not turn.delivered for turn in self.conversation.turns)
        return {name: found[name] for name in COUNTED} | {"undelivered": undelivered}

    @property
    def failure(self) -> InferenceError | None:
        """The error of a call that failed for the engine's sake and was never made good."""
        return next(iter(self._failed.values()), None)

    @property
    def idle_seconds(self) -> float:
        """How long it has not been used; 0 while a call is being answered."""
        return 0.0 if self._users else time.monotonic() - self._used_at

    def touch(self) -> None:
        """It is being used."""
        self._used_at = time.monotonic()

    @contextmanager
    def in_use(self) -> Generator[None]:
        """A call is being answered while the body runs."""
        self._users += 1
        try:
            with self._load.one_more():
                yield
        finally:
            self._users -= 1
            self.touch()

    def settle(self, asked: GenerationHyperparameters) -> GenerationHyperparameters:
        """Return what a call is sampled with that asks for these settings.

        Raises:
            ApiError: 400, they cannot be trained on.
        """
        if not self.trained:
            return asked
        settled = for_training(asked, self.gconfig, self._sampling)
        self._counts["overruled"] += settled is not asked
        return settled

    def begin(self, call: Call, *, prefix: str) -> Exchange:
        """Start to answer a call; a retry gets what was started before.

        Raises:
            ApiError: the session is sealed, too many calls are under way, the messages are
                refused, or the prompt is too long.
        """
        if self.is_sealed:
            raise SessionSealed
        self._load.check()
        same = [e for e in self._exchanges.get(call.digest, ()) if e.error is None]
        if call.is_retry and same:
            # Rather what nobody has had and nobody waits for: equal calls may be under way.
            before = max(reversed(same), key=lambda e: (not e.delivered, e.readers == 0))
            self._counts["replays" if before.is_over else "joins"] += 1
            self._keep(before)
            return before
        exchange = Exchange(call, self._plan(call), prefix=prefix)
        self._exchanges[call.digest] = [*same, exchange]
        if call.kept is not None:
            self._by_id[exchange.id] = exchange
        task = self._group.create_task(self._sample(exchange), context=self._context.copy())
        self._tasks[exchange] = task
        task.add_done_callback(lambda _: self._ended(exchange))
        return exchange

    def deliver(self, exchange: Exchange) -> None:
        """A client has all of the answer. After the end of the episode that counts no more."""
        if not self.is_sealed:
            exchange.deliver()

    def kept(self, name: str) -> Exchange | None:
        """Return the exchange with this id, if calls may go on from it."""
        return self._by_id.get(name)

    def set_reward(self, reward: float, name: str | None) -> str:
        """Give a turn its reward, the last one without a name; return its name.

        Raises:
            ApiError: the session is sealed, or has no such turn.
        """
        if self.is_sealed:
            raise SessionSealed
        turns = self.delivered_turns()
        found = [turn for turn in turns if name is None or turn.id == name]
        if not found:
            raise ApiError(
                f"interaction_id: expected one of {[turn.id for turn in turns]}, got {name!r}"
                if turns
                else "interaction_id: no call of this session has been answered yet",
                param="interaction_id",
            )
        found[-1].reward = reward
        return found[-1].id

    def left(self, exchange: Exchange) -> None:
        """A client has gone; a call that is not over goes on for a while, for its retry."""
        if exchange.readers == 0 and not exchange.is_over:
            self._keep(exchange)
            loop = asyncio.get_running_loop()
            self._drops[exchange] = loop.call_later(self._abandoned_seconds, self._drop, exchange)

    async def seal(self) -> None:
        """End it: calls in flight are cancelled, later ones refused.

        Returns when all have ended.
        """
        self.is_sealed = True
        tasks = list(self._tasks.items())
        for exchange, task in tasks:
            exchange.fail(SessionSealed())
            task.cancel()
        if tasks:
            await asyncio.wait([task for _, task in tasks])
        self._exchanges.clear()
        self._by_id.clear()

    def _ended(self, exchange: Exchange) -> None:
        self._tasks.pop(exchange, None)
        self._keep(exchange)

    def _keep(self, exchange: Exchange) -> None:
        """Do not drop it for those who have left until now."""
        timer = self._drops.pop(exchange, None)
        if timer is not None:
            timer.cancel()

    def _drop(self, exchange: Exchange) -> None:
        task = self._tasks.get(exchange)
        if task is not None and exchange.readers == 0:
            self._counts["abandoned"] += 1
            exchange.fail(ApiError("the call was abandoned by its client", status=408))
            task.cancel()

    def _plan(self, call: Call) -> Plan:
        if call.tools is not None and self.chat.replies.parser is None:
            raise ApiError(f"tools: {self.chat.replies.advice}", param="tools")
        try:
            if call.prompt is None:
                plan = self.conversation.plan(call.messages, call.tools)
            else:
                plan = self.conversation.plan_prompt(call.prompt)
        except DataError as error:
            raise ApiError(f"{call.param}: {error}", param=call.param) from error
        most = call.gconfig.max_tokens
        if len(plan.prompt_ids) >= most:
            self.is_truncated = True
            raise ApiError(
                f"{call.param}: the prompt has {len(plan.prompt_ids)} tokens, and prompt and reply "
                f"together may have {most} (gconfig.max_tokens): shorten it",
                param=call.param,
                code="context_length_exceeded",
            )
        return plan

    async def _sample(self, exchange: Exchange) -> None:
        try:
            n = range(len(exchange.tapes))
            found = await collect(self._choice(exchange, i) for i in n)
        except InferenceError as error:
            if not isinstance(error, RequestError):
                self._failed[exchange.call.digest] = error
            exchange.fail(error)
        except Exception as error:
            logger.exception("a call of a session failed")
            self._failed[exchange.call.digest] = failure = InferenceError(
                f"a call could not be answered: {type(error).__name__}: {error}"
            )
            exchange.fail(failure)
        else:
            self._failed.pop(exchange.call.digest, None)
            turns = [turn for turn, _ in found]
            for turn in turns:
                self.conversation.add(turn)
            replies = [reply for _, reply in found]
            self._counts["malformed_calls"] += sum(r.has_malformed_call for r in replies)
            exchange.finish(turns, replies)

    async def _choice(self, exchange: Exchange, choice: int) -> tuple[Turn, Reply]:
        call, plan = exchange.call, exchange.plan
        rid = exchange.turn_id(choice) if plan.parent is None else self._rids[plan.parent]
        gconfig = call.gconfig
        request = ModelRequest(
            plan.prompt_ids,
            gconfig if gconfig.n_samples == 1 else gconfig.new(n_samples=1),
            rid=rid,
            metadata={"messages": list(call.messages)},
        )
        sink = exchange.tapes[choice].append if call.stream else None
        response = await self._engine.agenerate(request, on_tokens=sink)
        reply = read_reply(
            self.chat,
            call.gconfig,
            response,
            tools=call.tools,
            prompt_ids=plan.prompt_ids if call.prompt is None else None,
        )
        calls = reply.message.get("tool_calls")
        if calls and self.on_tool_calls is not None:
            self.on_tool_calls(len(calls))
        turn = Turn(
            id=exchange.turn_id(choice),
            parent=plan.parent,
            messages=call.messages,
            tools=call.tools,
            reply=reply.message,
            response=response,
            key=plan.key,
            text=self._continued(call.prompt, response.output_tokens),
        )
        self._rids[turn] = rid
        return turn, reply

    def _continued(self, prompt: str | list[int] | None, output: Sequence[int]) -> str | None:
        """What a longer text prompt begins with when it goes on behind `output`.

        None where there is no such text: behind an end-of-sequence token no text goes on.
        """
        if not isinstance(prompt, str) or (output and output[-1] in self.chat.eos_token_ids):
            return None
        return f"{prompt}{self.chat.replies.visible(output)}"

    def delivered_turns(self) -> Sequence[Turn]:
        """The turns that count: those that the agent received, parents before children."""
        return [turn for turn in self.conversation.turns if turn.delivered]
