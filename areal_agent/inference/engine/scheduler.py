"""Who is in which slot: admission, prefix reuse, compaction.

Running requests hold the slots 0..n-1 without holes, so that a decoding step reads one block of
the cache. Slots behind them keep the prefixes of finished conversations until somebody needs the
room or the weights change.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from areal_agent.inference.engine.request import Sequence

MIN_PREFIX = 8
"""Shorter common prefixes are not worth a copy."""


class Slots(Protocol):
    """What the scheduler asks of a model's cache."""

    reuses_prefixes: bool
    prefill_tokens: int

    def copy_slot(self, source: int, target: int, length: int) -> None: ...

    def swap_slots(self, a: int, b: int, length: int) -> None: ...


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens of a finished conversation whose keys and values are still in a slot."""

    tokens: list[int]
    cache_key: str | None
    last_used: int

    @property
    def valid(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive slots to be filled by one prefill call."""

    first_slot: int
    rows: list[list[int]]
    starts: list[int]


@dataclass(slots=True)
class Wave:
    """Requests admitted together: `leaders` are filled, `twins` copy from a leader."""

    first_slot: int
    leaders: list[Sequence] = field(default_factory=list[Sequence])
    twins: list[tuple[Sequence, int]] = field(default_factory=list[tuple[Sequence, int]])
    """With the index of the leader that has the same prompt."""


class Scheduler:
    """Moves requests from the queue into slots and out again."""

    def __init__(self, slots: Slots, max_running: int) -> None:
        self._model = slots
        self.max_running = max_running
        """Requests that decode together."""
        self._clock = itertools.count()
        self.epoch = 0
        """Count of weight updates: prefixes of an earlier epoch are never reused."""
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._idle: list[Prefix | None] = []

    # --- in ---------------------------------------------------------------------------------------

    def admit(self) -> Wave | None:
        """Give slots to as many waiting requests as fit; None when there are none."""
        room = min(self.max_running - len(self.running), len(self.waiting))
        if room <= 0:
            return None
        wave = Wave(first_slot=len(self.running))
        seen: dict[tuple[int, ...], int] = {}
        unique: list[Sequence] = []
        twins: list[tuple[Sequence, Sequence]] = []
        for sequence in (self.waiting.popleft() for _ in range(room)):
            prompt = tuple(sequence.tokens)
            if self._model.reuses_prefixes and prompt in seen:
                twins.append((sequence, unique[seen[prompt]]))
            else:
                seen[prompt] = len(unique)
                unique.append(sequence)
        match = self._matcher()
        # neighbours of like length waste less padding, and the last slot, which moves forward into
        # the holes of finished requests, should not be the longest of all
        unique.sort(key=lambda s: len(s.tokens) - match(s)[1], reverse=True)
        for sequence in unique:
            self._place(sequence, *match(sequence))
            wave.leaders.append(sequence)
        order = {id(leader): i for i, leader in enumerate(wave.leaders)}
        for sequence, leader in twins:
            self._place(sequence, None, 0)
            sequence.cached = sequence.prompt_length - 1
            wave.twins.append((sequence, order[id(leader)]))
        return wave

    def pieces(self, wave: Wave) -> Iterator[Piece]:
        """Cut a wave's leaders into prefill calls of bounded size; long prompts into several."""
        rows = [s.tokens[s.valid :] for s in wave.leaders]
        starts = [s.valid for s in wave.leaders]
        yield from cut(wave.first_slot, rows, starts, self._model.prefill_tokens)

    def copy_twins(self, wave: Wave) -> None:
        """Fill the slots of twins once their leaders are filled."""
        first_twin = wave.first_slot + len(wave.leaders)
        for i, (sequence, leader) in enumerate(wave.twins):
            length = sequence.prompt_length
            self._model.copy_slot(wave.first_slot + leader, first_twin + i, length)
            sequence.valid = length

    # --- out --------------------------------------------------------------------------------------

    def release(self, slot: int) -> Sequence:
        """Take a request out of its slot; its prefix stays behind if it can be used again."""
        sequence = self.running[slot]
        last = len(self.running) - 1
        keep = (
            self._model.reuses_prefixes
            and sequence.epoch == self.epoch
            and sequence.valid >= MIN_PREFIX
        )
        if slot != last:
            moved = self.running[last]
            if keep:
                self._model.swap_slots(slot, last, max(sequence.valid, moved.valid))
            else:
                self._model.copy_slot(last, slot, moved.valid)
            self.running[slot] = moved
        self.running.pop()
        prefix = Prefix(
            sequence.tokens[: sequence.valid], sequence.request.cache_key, next(self._clock)
        )
        self._idle.insert(0, prefix if keep else None)
        return sequence

    def forget_prefixes(self) -> None:
        """Start a new epoch: the weights have changed."""
        self.epoch += 1
        self._idle = [None] * len(self._idle)

    # --- prefixes ---------------------------------------------------------------------------------

    def _matcher(self) -> Callable[[Sequence], tuple[Sequence | Prefix | None, int]]:
        """Return a function that finds the occupant with the longest common prefix.

        It sees requests that are placed after it was made only through the slots they took over.
        """
        by_key: dict[str, Prefix] = {}
        by_start: dict[tuple[int, ...], list[Sequence | Prefix]] = {}
        if self._model.reuses_prefixes:
            occupants = itertools.chain(
                (p for p in self._idle if p is not None),
                (s for s in self.running if s.epoch == self.epoch),
            )
            for occupant in occupants:
                if isinstance(occupant, Prefix) and occupant.cache_key is not None:
                    by_key[occupant.cache_key] = occupant
                by_start.setdefault(tuple(occupant.tokens[:MIN_PREFIX]), []).append(occupant)

        def match(sequence: Sequence) -> tuple[Sequence | Prefix | None, int]:
            own = by_key.get(sequence.request.cache_key or "")
            if own is not None and own.valid and own in self._idle:
                common = _common(own.tokens, sequence.tokens, own.valid)
                if common == own.valid or common >= MIN_PREFIX:
                    return own, common
            best, longest = None, MIN_PREFIX - 1
            for occupant in by_start.get(tuple(sequence.tokens[:MIN_PREFIX]), ()):
                if isinstance(occupant, Prefix) and occupant not in self._idle:
                    continue
                common = _common(occupant.tokens, sequence.tokens, occupant.valid)
                if common > longest:
                    best, longest = occupant, common
            return best, longest if best is not None else 0

        return match

    def _place(self, sequence: Sequence, source: Sequence | Prefix | None, common: int) -> None:
        """Put a request into the next slot, with the first `common` tokens taken from `source`."""
        target = len(self.running)
        if not self._idle:
            self._idle.append(None)
        if isinstance(source, Prefix) and source.cache_key == sequence.request.cache_key:
            at = self._idle.index(source)
            resident = self._idle[0]
            if at:
                length = source.valid if resident is None else max(source.valid, resident.valid)
                self._model.swap_slots(target, target + at, length)
                self._idle[0], self._idle[at] = source, resident
        else:
            self._vacate(avoid=source)
            if source is not None:
                self._model.copy_slot(self._slot_of(source, target), target, common)
        self._idle.pop(0)
        sequence.valid = sequence.cached = common
        sequence.epoch = self.epoch
        self.running.append(sequence)

    def _slot_of(self, source: Sequence | Prefix, vacated: int) -> int:
        if isinstance(source, Sequence):
            return self.running.index(source)
        if source in self._idle:
            return len(self.running) + self._idle.index(source)
        return vacated  # it was dropped to make room just now; nothing has been written there yet

    def _vacate(self, avoid: Sequence | Prefix | None) -> None:
        """Make the first idle slot free, dropping the prefix that was used longest ago."""
        resident = self._idle[0]
        if resident is None:
            return
        base = len(self.running)
        if None in self._idle:
            free = self._idle.index(None)
        elif base + len(self._idle) < self.max_running:
            free = len(self._idle)
            self._idle.append(None)
        else:
            others = [p for p in self._idle if p is not None and p is not avoid] or [resident]
            free = self._idle.index(min(others, key=lambda p: p.last_used))
        if free:
            self._model.copy_slot(base, base + free, resident.valid)
        self._idle[free], self._idle[0] = (resident, None) if free else (None, None)


def cut(first_slot: int, rows: list[list[int]], starts: list[int], most: int) -> Iterator[Piece]:
    """Cut rows in consecutive slots into prefill calls of at most `most` tokens with padding.

    A longer row comes in several pieces; the last one of a slot is the one whose logits count.
    """
    begin = 0
    while begin < len(rows):
        for _ in range(most, len(rows[begin]), most):
            head, rows[begin] = rows[begin][:most], rows[begin][most:]
            yield Piece(first_slot + begin, [head], [starts[begin]])
            starts[begin] += most
        end, width = begin, 0
        while end < len(rows):
            wider = max(width, len(rows[end]))
            if end > begin and wider * (end + 1 - begin) > most:
                break
            end, width = end + 1, wider
        yield Piece(first_slot + begin, rows[begin:end], starts[begin:end])
        begin = end


def _common(a: list[int], b: list[int], valid: int) -> int:
    """Length of the common prefix; at least the last token of `b` is left to be computed."""
    limit = min(valid, len(b) - 1)
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
