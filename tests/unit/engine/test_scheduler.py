"""Slots: no holes, no mix-ups, prefixes reused only while they are true."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from areal_agent.inference.engine.request import GenerateRequest, SamplingParams, Sequence
from areal_agent.inference.engine.scheduler import Scheduler, cut

PREFILL_TOKENS = 2048


@dataclass
class TokenSlots:
    """A cache that stores the tokens themselves, so that a mix-up shows."""

    slots: list[list[int]] = field(default_factory=list)
    reuses_prefixes: bool = True
    prefill_tokens: int = PREFILL_TOKENS
    copied: int = 0

    def write(self, slot: int, start: int, tokens: list[int]) -> None:
        while slot >= len(self.slots):
            self.slots.append([])
        kept = self.slots[slot][:start]
        assert len(kept) == start, "wrote behind a hole"
        self.slots[slot] = kept + tokens

    def copy_slot(self, source: int, target: int, length: int) -> None:
        self.copied += 1
        self.write(target, 0, self.slots[source][:length])

    def swap_slots(self, a: int, b: int, length: int) -> None:
        while max(a, b) >= len(self.slots):
            self.slots.append([])
        x, y = self.slots[a], self.slots[b]
        self.slots[a], self.slots[b] = y[:length] + x[length:], x[:length] + y[length:]


def request(prompt: list[int], key: str | None = None) -> Sequence:
    return Sequence(
        GenerateRequest("r", prompt, SamplingParams(), cache_key=key),
        limit=10**6,
        on_done=lambda _: None,
    )


def serve(scheduler: Scheduler, slots: TokenSlots) -> list[Sequence]:
    """Admit and fill what waits, as the decoding loop does; everyone gets one token."""
    wave = scheduler.admit()
    if wave is None:
        return []
    for piece in scheduler.pieces(wave):
        for i, (row, start) in enumerate(zip(piece.rows, piece.starts, strict=True)):
            slots.write(piece.first_slot + i, start, row)
    scheduler.copy_twins(wave)
    new = wave.leaders + [twin for twin, _ in wave.twins]
    for sequence in new:
        sequence.valid = sequence.prompt_length
        sequence.append(len(sequence.tokens) % 5, -1.0, scheduler.epoch)
    return new


class SlotMachine(RuleBasedStateMachine):
    """Random traffic over four slots."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = TokenSlots()
        self.scheduler = Scheduler(self.slots, 4)
        self.history: dict[str, list[int]] = {}

    @rule(
        stem=st.integers(0, 2),
        tail=st.lists(st.integers(0, 3), min_size=1, max_size=6),
        key=st.sampled_from(["a", "b", "c", "d", "e", None]),
        follow=st.booleans(),
    )
    def submit(self, stem: int, tail: list[int], key: str | None, follow: bool) -> None:
        base = self.history.get(key or "") if follow else None
        self.scheduler.waiting.append(request((base or [stem] * 10) + tail, key))

    @rule()
    def admit(self) -> None:
        serve(self.scheduler, self.slots)

    @rule()
    def decode(self) -> None:
        for slot, sequence in enumerate(self.scheduler.running):
            self.slots.write(slot, sequence.valid, [sequence.tokens[-1]])
            sequence.valid += 1
            sequence.append(len(sequence.tokens) % 7, -1.0, self.scheduler.epoch)

    @rule(which=st.integers(0, 3))
    def end(self, which: int) -> None:
        if which < len(self.scheduler.running):
            sequence = self.scheduler.release(which)
            self.history[sequence.request.cache_key or ""] = sequence.tokens

    @rule()
    def update(self) -> None:
        self.scheduler.forget_prefixes()

    @invariant()
    def every_slot_holds_its_own_tokens(self) -> None:
        scheduler = self.scheduler
        assert len(scheduler.running) + len(scheduler._idle) <= 4
        for slot, sequence in enumerate(scheduler.running):
            assert self.slots.slots[slot][: sequence.valid] == sequence.tokens[: sequence.valid]
            assert sequence.valid == len(sequence.tokens) - 1
        for slot, prefix in enumerate(scheduler._idle, len(scheduler.running)):
            if prefix is not None:
                assert self.slots.slots[slot][: prefix.valid] == prefix.tokens

    @invariant()
    def nobody_waits_beside_a_free_slot_for_ever(self) -> None:
        assert len(self.scheduler.running) <= 4


SlotMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlots = SlotMachine.TestCase


def test_the_next_turn_finds_its_conversation() -> None:
    slots = TokenSlots()
    scheduler = Scheduler(slots, 4)
    scheduler.waiting.extend([request(list(range(20)), "a"), request(list(range(50, 70)), "b")])
    serve(scheduler, slots)
    for _ in range(2):
        scheduler.release(0)
    turn = request([*range(20), 99, 98], "a")
    scheduler.waiting.append(turn)
    serve(scheduler, slots)
    assert turn.cached == 20
    assert slots.copied <= 1


def test_a_new_epoch_forgets_also_what_was_running() -> None:
    slots = TokenSlots()
    scheduler = Scheduler(slots, 4)
    scheduler.waiting.append(request(list(range(20)), "a"))
    serve(scheduler, slots)
    scheduler.forget_prefixes()
    scheduler.release(0)
    turn = request([*range(20), 99], "a")
    scheduler.waiting.append(turn)
    serve(scheduler, slots)
    assert turn.cached == 0


def test_equal_prompts_are_computed_once() -> None:
    slots = TokenSlots()
    scheduler = Scheduler(slots, 8)
    scheduler.waiting.extend([request(list(range(20))) for _ in range(5)])
    wave = scheduler.admit()
    assert wave is not None
    assert (len(wave.leaders), len(wave.twins)) == (1, 4)
    assert sum(len(row) for piece in scheduler.pieces(wave) for row in piece.rows) == 20


def test_requests_beyond_the_slots_wait() -> None:
    slots = TokenSlots(reuses_prefixes=False)
    scheduler = Scheduler(slots, 2)
    scheduler.waiting.extend([request([1, 2, i]) for i in range(3)])
    assert len(serve(scheduler, slots)) == 2
    assert serve(scheduler, slots) == []
    scheduler.release(1)
    assert len(serve(scheduler, slots)) == 1


def test_prefill_is_cut_to_size() -> None:
    rows = [[1] * n for n in (3, 10, 1000, 1500, 2 * PREFILL_TOKENS + 5)]
    pieces = list(cut(7, [list(r) for r in rows], [0, 2, 0, 0, 4], PREFILL_TOKENS))
    assert [(p.first_slot, [len(r) for r in p.rows], p.starts) for p in pieces] == [
        (7, [3, 10], [0, 2]),
        (9, [1000], [0]),
        (10, [1500], [0]),
        (11, [PREFILL_TOKENS], [4]),
        (11, [PREFILL_TOKENS], [4 + PREFILL_TOKENS]),
        (11, [5], [4 + 2 * PREFILL_TOKENS]),
    ]
