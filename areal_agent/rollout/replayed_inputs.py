"""The recorded world: an engine and inputs that say what they said when it was recorded."""

import builtins
import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from areal_agent.errors import InferenceError
from areal_agent.rollout.differences import Decode, ids_differ, settings_differ
from areal_agent.rollout.inputs import Tool, tool_name
from areal_agent.rollout.plain import exact_json, shown
from areal_agent.rollout.script import Asked, Difference, Event, Script
from areal_agent.types import ModelRequest, ModelResponse, Scores, TokenSink


class ReplayEngine:
    """Implements `InferenceEngine` from a script; there are no weights."""

    def __init__(self, script: Script, decode: Decode, *, version: int) -> None:
        self._script = script
        self._decode = decode
        self._version = version
        self._calls = 0
        calls = [event.record for event in script.events if event.kind == "model"]
        self._seeds = {call["sampling"]["seed"] for call in calls}

    @property
    def version(self) -> int:
        """The newest version in the record."""
        return self._version

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        """Return the recorded reply to the same request, or raise what it failed with."""
        number, self._calls = self._calls, self._calls + 1
        prompt, sampling = list(request.input_ids), request.gconfig.model_dump(mode="json")

        def find(events: list[Event]) -> Event | None:
            same = [one for one in events if self._is_same(one, prompt, sampling)]
            exact = [one for one in same if one.record["sampling"]["seed"] == sampling["seed"]]
            return next(iter(exact or same), None)

        def compare(event: Event) -> tuple[str, str]:
            if event.prompt_ids != prompt:
                return ids_differ(event.prompt_ids, prompt, self._decode)
            return settings_differ(event.record["sampling"], sampling)

        text = f"model call {number} with {self._decode(prompt)!r}"
        asked = Asked("model", f"model call {number}", text, compare)
        event = await self._script.play(find, asked)
        if "error" in event.record:
            raise error_of(event.record["error"])
        response = _response(prompt, event.record)
        if on_tokens is not None and response.output_tokens:
            on_tokens(response.output_tokens, response.output_logprobs, response.output_versions)
        return response

    def _is_same(self, event: Event, prompt: list[int], sampling: Mapping[str, Any]) -> bool:
        """Tell whether an event is this request.

        Seeds come from the order of calls, which may vary among those that go on at once.
        """
        recorded = event.record["sampling"]
        return (
            event.prompt_ids == prompt
            and {**recorded, "seed": 0} == {**sampling, "seed": 0}
            and sampling["seed"] in self._seeds
        )

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        """Refused: scores are not recorded."""
        del rows, temperature
        asked = "scores, which are not recorded: score() cannot be replayed"
        self._script.differ(Difference("a call of engine.score", "nothing", asked))

    async def update_weights(self, path: Path, version: int) -> None:
        """Refused: there are no weights."""
        raise InferenceError(f"a replay has no weights to update: {path}, version {version}")

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Refused: nothing runs."""
        raise InferenceError("a replay cannot be paused")

    async def __aenter__(self) -> Self:
        """Return this."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is open."""


class ReplayedInputs:
    """Implements `Inputs` from a record."""

    def __init__(self, script: Script, record: Mapping[str, Any], random_seed: int) -> None:
        self._script = script
        self._clock: list[float] = list(record["clock"])
        self._n_read = 0
        seed = record["random_seed"]
        self._random = random.Random(random_seed if seed is None else seed)

    @property
    def unread(self) -> int:
        """How many recorded times were not asked for."""
        return len(self._clock) - self._n_read

    def now(self) -> float:
        """See `Inputs.now`."""
        if not self.unread:
            recorded = f"now() was asked for {len(self._clock)} times"
            self._script.differ(Difference("the time", recorded, "it is asked for once more"))
        self._n_read += 1
        return self._clock[self._n_read - 1]

    def random(self) -> random.Random:
        """See `Inputs.random`."""
        return self._random

    async def tool(
        self,
        function: Tool,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        timeout_seconds: float | None,
    ) -> Any:
        """Return what the same call of the same tool returned, or raise what it raised."""
        del timeout_seconds
        name = tool_name(function)
        text = exact_json([list(args), dict(kwargs)])
        given = shown((args, kwargs)) if text is None else None
        asked_args = None if text is None else json.loads(text)

        def find(events: list[Event]) -> Event | None:
            for event in events:
                one = event.record
                if one["name"] != name:
                    continue
                same_args = one["args"] == asked_args if given is None else one["args"] is None
                if same_args and (given is None or one["shown"].startswith(given)):
                    return event
            return None

        asked = Asked("tool", f"a call of the tool {name}", _call_text(name, asked_args, given))
        event = await self._script.play(find, asked)
        record = event.record
        if record["error"] is not None:
            raise error_of(record["error"])
        if not record["returned"]:
            self._no_result(event)
        return record["result"]

    def _no_result(self, event: Event) -> NoReturn:
        recorded = f"it returned what JSON cannot hold: {event.record['shown']}"
        now = "a result is needed: let the tool return text, numbers, lists or dicts"
        self._script.differ(Difference(event.text, recorded, now))


def model_event(record: Mapping[str, Any], prompt_ids: list[int], decode: Decode) -> Event:
    """A recorded call of a model."""
    return Event("model", record, prompt_ids, f"a model call with {decode(prompt_ids)!r}")


def tool_event(record: Mapping[str, Any]) -> Event:
    """A recorded call of a tool."""
    return Event("tool", record, [], _call_text(record["name"], record["args"], record["shown"]))


def error_of(facts: Mapping[str, Any] | None) -> Exception:
    """An error like the recorded one: of its class where that is known here."""
    if facts is None:
        return RuntimeError("it failed")
    name, args = facts["type"], facts["args"]
    module = sys.modules.get(facts["module"], builtins)
    known = getattr(module, name, None)
    if args is not None and isinstance(known, type) and issubclass(known, Exception):
        # What a class makes of its arguments may be other ones, which it does not take again.
        for make in (known, partial(known.__new__, known)):
            try:
                error = make(*args)
                if type(error) is known and str(error) == facts["message"]:
                    return error
            except Exception:  # noqa: BLE001, S112 - a class of the user's may do anything
                continue
    return type(name, (Exception,), {})(facts["message"])


def _response(prompt: list[int], turn: Mapping[str, Any]) -> ModelResponse:
    return ModelResponse(
        input_tokens=prompt,
        output_tokens=turn["output_ids"],
        output_logprobs=[float("nan") if one is None else one for one in turn["logprobs"]],
        output_versions=turn["versions"],
        stop_reason=turn["stop_reason"],
        latency_seconds=turn["latency"],
        ttft_seconds=turn["ttft"],
        temperature=turn["temperature"],
    )


def _call_text(name: str, args: Any, given: str | None) -> str:
    if args is None:
        return f"{name}{given}"
    values = [json.dumps(one, ensure_ascii=False) for one in args[0]]
    values += [f"{key}={json.dumps(one, ensure_ascii=False)}" for key, one in args[1].items()]
    return f"the tool {name}({', '.join(values)})"
