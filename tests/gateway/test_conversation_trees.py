"""Any tree of conversations: rows hold what was sampled, after the prompts it was sampled for."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_support import CHATML, stage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conversation import REWRITES, TOOL, check_rows

from areal_agent.gateway.rewards import assign, interactions
from areal_agent.rollout.results import as_trajectories
from areal_agent.testing.fakes import Reply

Step = tuple[int, str, str, int, str]
"""Which reply to go on from, how, what to say, how many choices, and what the engine samples."""

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
TEXT = st.text("ab ", max_size=5)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(["on", "on", "on", "trimmed", "edited", "new", "no tools", "stream"]),
        TEXT,
        st.sampled_from([1, 1, 1, 2, 3]),
        st.one_of(TEXT, st.just(CALL), st.just("a b" + CALL)),
    ),
    min_size=1,
    max_size=8,
)


def next_messages(step: Step, known: Sequence[list[Any]]) -> list[Any]:
    """The dialogue that an agent sends: one that it knows, or one it made of it."""
    at, how, say, _, _ = step
    user = {"role": "user", "content": say}
    if how == "new" or not known:
        return [user]
    history = [dict(message) for message in known[at % len(known)]]
    if how == "trimmed":
        history[-1]["content"] = (history[-1]["content"] or "").strip()
    if how == "edited":
        history[at % len(history)]["content"] = say + "!"
    calls = history[-1].get("tool_calls") or []
    results = [{"role": "tool", "content": say, "tool_call_id": c["id"]} for c in calls]
    return [*history, *(results or [user])]


async def play(steps: Sequence[Step], template: str, reward: object, discount: float) -> None:
    async with (
        asyncio.timeout(60),
        stage(template=template) as playing,
        playing.session(max_tokens=4096) as session,
    ):
        client = playing.gateway.client(session)
        known: list[list[Any]] = []
        for step in steps:
            _, how, _, n, text = step
            for choice in range(n):
                # A token a character: not what the tokenizer would make of the text.
                ids = [i for c in text for i in playing.ids(c)]
                end = [] if choice == 2 and ids else playing.ids("<|im_end|>")
                playing.says.append(Reply([*ids, *end]))
            messages = next_messages(step, known)
            asked: dict[str, Any] = {"model": "m", "messages": messages, "n": n}
            if how != "no tools":
                asked["tools"] = [TOOL]
            if how == "stream":
                async with client.chat.completions.stream(**asked) as events:
                    async for _ in events:
                        pass
                made: Any = await events.get_final_completion()
            else:
                made = await client.chat.completions.create(**asked)
            known += [[*messages, c.message.to_dict()] for c in made.choices]
        turns = session.delivered_turns()
        assert len(turns) == len(playing.engine.requests) == sum(n for _, _, _, n, _ in steps)
        for style in ("concat", "individual"):
            assign(turns, reward if reward is not None else list(range(len(turns))))
            found = interactions(turns, discount=discount, style=style)
            rows = as_trajectories(found) or []
            check_rows(playing, rows, turns)
            if style == "individual":
                assert len(rows) == len(turns)
        assert session.counts["turns"] == len(turns)
        assert session.counts["undelivered"] == 0


@pytest.mark.parametrize("template", [CHATML, REWRITES], ids=["appends", "rewrites"])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(steps=STEPS, reward=st.sampled_from([1.0, None]), discount=st.sampled_from([1.0, 0.5]))
def test_rows_are_what_was_sampled(
    template: str, steps: list[Step], reward: object, discount: float
) -> None:
    asyncio.run(play(steps, template, reward, discount))
