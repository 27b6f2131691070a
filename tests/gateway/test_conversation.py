"""What is trained is what was sampled, however an agent treats its history."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_support import CHATML, USER, Stage, scene, stage

from areal_agent.gateway.conversation import Turn
from areal_agent.gateway.rewards import assign, interactions
from areal_agent.gateway.session import Session
from areal_agent.rollout.results import as_trajectories
from areal_agent.testing.fakes import Reply
from areal_agent.trajectory import Trajectory

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def rows_of(session: Session, reward: object = 1.0) -> list[Trajectory]:
    turns = session.delivered_turns()
    assign(turns, reward)
    return as_trajectories(interactions(turns, discount=1.0, style="concat")) or []


def sampled(rows: Sequence[Trajectory]) -> list[int]:
    """Ids on the mask, row after row."""
    return [
        token for row in rows for token, on in zip(row.input_ids, row.loss_mask, strict=True) if on
    ]


def spans(row: Trajectory) -> list[tuple[int, int]]:
    """Where runs of sampled tokens begin and end."""
    mask = [False, *row.loss_mask, False]
    edges = [t for t in range(len(mask) - 1) if mask[t] != mask[t + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def check_rows(playing: Stage, rows: Sequence[Trajectory], turns: Sequence[Turn]) -> None:
    """Every sampled token once, after the very prompt that the engine got."""
    left = {(tuple(t.response.input_tokens), tuple(t.response.output_tokens), t.id) for t in turns}
    prompts = [tuple(request.input_ids) for request in playing.engine.requests]
    for row in rows:
        for start, end in spans(row):
            prompt, output = tuple(row.input_ids[:start]), tuple(row.input_ids[start:end])
            assert prompt in prompts
            found = [key for key in left if key[:2] == (prompt, output)]
            assert found, "a row trains on what was not sampled there, or trains on it twice"
            left.remove(found[0])
    assert not left, "a sampled reply is in no row"
    assert sum(sum(row.loss_mask) for row in rows) == sum(
        len(turn.response.output_tokens) for turn in turns
    )


async def ask(playing: Stage, session: Session, messages: list[Any], **kwargs: Any) -> Any:
    client = playing.gateway.client(session)
    made = await client.chat.completions.create(model="m", messages=messages, **kwargs)
    return made.choices[0].message


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_ids_are_kept_where_the_tokenizer_would_merge_them() -> None:
    """S01."""
    async with scene() as (playing, session):
        a, b, end = playing.ids("a") + playing.ids("b") + playing.ids("<|im_end|>")
        assert playing.ids("ab") not in ([a, b], [])
        playing.says.append(Reply([a, b, end]))
        reply = await ask(playing, session, [USER])
        assert reply.content == "ab"
        await ask(playing, session, [USER, says("ab"), USER])
        [row] = rows_of(session)
        assert sampled([row]) == [a, b, end, *playing.ids("ok<|im_end|>")]
        check_rows(playing, [row], session.delivered_turns())
    second = list(playing.engine.requests[1].input_ids)
    assert [a, b, end] == second[second.index(a) : second.index(a) + 3]


@pytest.mark.parametrize(
    ("way", "breaks"),
    [("object", 0), ("extra None fields", 0), ("trailing space removed", 1)],
)
async def test_a_history_rebuilt_by_hand_loses_nothing(way: str, breaks: int) -> None:
    """S02."""
    async with scene("so it is ", "yes") as (playing, session):
        reply = await ask(playing, session, [USER])
        assert reply.content == "so it is "
        back: Any = {
            "object": reply,
            "extra None fields": {
                **says(reply.content),
                "tool_calls": None,
                "refusal": None,
                "audio": None,
                "function_call": None,
                "name": None,
            },
            "trailing space removed": says(reply.content.strip()),
        }[way]
        await ask(playing, session, [USER, back, USER])
        rows = rows_of(session)
        check_rows(playing, rows, session.delivered_turns())
        assert len(rows) == 1 + breaks
        assert sampled(rows) == playing.ids("so it is <|im_end|>yes<|im_end|>")
        assert session.counts.get("breaks/history", 0) == breaks
        assert session.counts.get("prefix_hits", 0) == 1 - breaks


REWRITES = CHATML.replace(
    "{%- for m in messages %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}\n"
    "{%- for m in messages %}",
)
"""Writes another first line each time that the user speaks."""


async def test_a_template_that_rewrites_history_starts_a_new_row() -> None:
    async with asyncio.timeout(20), stage("a", "b", template=REWRITES) as playing:
        async with playing.session() as session:
            await ask(playing, session, [USER])
            await ask(playing, session, [USER, says("a"), USER])
            rows = rows_of(session)
            check_rows(playing, rows, session.delivered_turns())
            assert [sampled([row]) for row in rows] == [
                playing.ids("a<|im_end|>"),
                playing.ids("b<|im_end|>"),
            ]
            assert session.counts["breaks/template"] == 1
        text = playing.chat.decode(playing.engine.requests[1].input_ids)
        assert text.startswith(
            "2<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\na<|im_end|>"
        )


@pytest.mark.parametrize(
    ("history", "counted"),
    [
        ([{"role": "user", "content": "other"}, says("a"), USER], {"breaks/history": 1}),
        ([USER, says("changed"), USER], {"breaks/history": 1}),
        ([{"role": "user", "content": "all so far: a"}], {}),
        ([{"role": "system", "content": "so far: a"}, says("noted"), USER], {"breaks/history": 1}),
    ],
    ids=["prompt edited", "reply edited", "summary", "summary with a reply"],
)
async def test_another_history_is_another_row(history: Any, counted: dict[str, int]) -> None:
    async with asyncio.timeout(20), stage("a", "b", "c") as playing:
        async with playing.session() as session:
            await ask(playing, session, [USER])
            await ask(playing, session, history)
            await ask(playing, session, [*history, says("b"), USER])
            rows = rows_of(session)
            check_rows(playing, rows, session.delivered_turns())
            assert len(rows) == 2
            found = {k: n for k, n in session.counts.items() if n and k.startswith("breaks")}
            assert found == counted
            assert session.counts["prefix_hits"] == 1
        assert list(playing.engine.requests[1].input_ids) == playing.chat.prompt_ids(history)


async def test_each_choice_is_a_record_with_a_reward_of_its_own() -> None:
    """S06."""
    async with scene("a", "b", "c", "more") as (playing, session):
        made = await playing.gateway.client(session).chat.completions.create(
            model="m", messages=[USER], n=3
        )
        said = [choice.message.content for choice in made.choices]
        assert said == ["a", "b", "c"]
        await ask(playing, session, [USER, says("b"), USER])
        turns = session.delivered_turns()
        names = [turn.id for turn in turns]
        assert len(set(names)) == 4
        rewards = {names[0]: 0.1, names[2]: 0.3, names[3]: 1.0}
        rows = rows_of(session, rewards)
        check_rows(playing, rows, turns)
        got = [(playing.chat.decode(sampled([row])), row.reward) for row in rows]
    end = "<|im_end|>"
    assert sorted(got) == [
        (f"a{end}", 0.1),
        (f"b{end}more{end}", 1.0),
        (f"c{end}", 0.3),
    ]
    seeds = {request.gconfig.seed for request in playing.engine.requests[:3]}
    assert len(seeds) == 3 or seeds == {None}


async def test_a_fork_trains_on_the_common_part_once() -> None:
    async with scene("a", "b", "c", "d") as (playing, session):
        await ask(playing, session, [USER])
        one = [USER, says("a"), {"role": "user", "content": "one"}]
        two = [USER, says("a"), {"role": "user", "content": "two"}]
        await ask(playing, session, one)
        await ask(playing, session, two)
        await ask(playing, session, [*one, says("b"), USER])
        rows = rows_of(session)
        check_rows(playing, rows, session.delivered_turns())
        ids = [playing.ids(text + "<|im_end|>") for text in "abdc"]
        assert [sampled([row]) for row in rows] == [[*ids[0], *ids[1], *ids[2]], ids[3]]
        assert session.counts["forks"] == 1
        assert session.counts["prefix_hits"] == 3


async def test_other_tools_midway_start_a_new_row() -> None:
    async with scene("a", "a", "b") as (playing, session):
        await ask(playing, session, [USER], tools=[TOOL])
        await ask(playing, session, [{"role": "user", "content": "else"}])
        await ask(playing, session, [USER, says("a"), USER])
        rows = rows_of(session)
        check_rows(playing, rows, session.delivered_turns())
        assert len(rows) == 3
        assert session.counts["breaks/tools"] == 1


async def test_calls_with_ids_choose_the_turn_that_made_them() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    async with scene(call, call, "end") as (playing, session):
        first = await ask(playing, session, [USER], tools=[TOOL])
        second = await ask(playing, session, [USER], tools=[TOOL])
        assert first.tool_calls[0].id != second.tool_calls[0].id
        result = {"role": "tool", "content": "7", "tool_call_id": first.tool_calls[0].id}
        await ask(playing, session, [USER, first, result], tools=[TOOL])
        turns = session.delivered_turns()
        assert turns[2].parent is turns[0]
        check_rows(playing, rows_of(session), turns)


async def test_a_turn_that_arrived_is_preferred_to_one_that_did_not() -> None:
    """Same question, same words: only the tokens of the reply that arrived can have a future."""
    async with scene("a", "a", "b") as (playing, session):
        await ask(playing, session, [USER])
        await ask(playing, session, [USER])
        arrived, lost = session.conversation.turns
        lost.delivered = False
        await ask(playing, session, [USER, says("a"), USER])
        assert session.conversation.turns[2].parent is arrived
        check_rows(playing, rows_of(session), session.delivered_turns())


async def test_what_is_gone_on_from_was_received() -> None:
    """A client that stops reading at the last word, and sends it back, had all of it."""
    async with scene("a", "b") as (playing, session):
        await ask(playing, session, [USER])
        [turn] = session.conversation.turns
        turn.delivered = False
        await ask(playing, session, [USER, says("a"), USER])
        [row] = rows_of(session)
        assert sampled([row]) == playing.ids("a<|im_end|>b<|im_end|>")


async def test_replies_that_ended_without_an_end_of_turn_are_gone_on_from() -> None:
    async with scene("x STOP y", "z") as (playing, session):
        cut = await ask(playing, session, [USER], stop=["STOP"], max_tokens=6)
        assert cut.content == "x "
        await ask(playing, session, [USER, cut, USER])
        [row] = rows_of(session)
        check_rows(playing, [row], session.delivered_turns())
        assert playing.chat.decode(row.input_ids) == (
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nx STOP<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nz<|im_end|>"
        )
