"""The parser of allocation strings. Every error shows its place with a caret.

::

    plan    = group ("+" group)*                  groups have devices of their own
    group   = model ("|" model)*                  models of a group share theirs
    model   = backend ("[" name "]")? ":" (sizes | "(" "attn" ":" sizes "|" "ffn" ":" sizes ")")
    sizes   = (letter number)+                    any order, each letter once, absent means 1

White space may stand between any two of these.
"""

import re
from typing import NoReturn

from areal_agent.config.allocation import AllocationPlan, ModelAllocation
from areal_agent.config.parallelism import BACKENDS, DIMENSIONS, ParallelStrategy
from areal_agent.errors import AllocationError
from areal_agent.registry import did_you_mean

_EXAMPLE = "for instance 'fsdp:d4' or 'sglang:d2t4'"


def parse(text: str) -> AllocationPlan:
    """Parse `text`; see `areal_agent.config.allocation.parse_allocations`."""
    return _Parser(text).plan()


def parse_single(text: str) -> ModelAllocation:
    """Parse `text`, which must hold one model; see `ModelAllocation.from_str`."""
    first, *others = parse(text).allocations
    if others:
        separator = re.search(r"\+|\|(?!\s*f\s*f\s*n\b)", text)
        _fail(
            f"expected a single allocation, got {1 + len(others)}: give each model its own "
            "string, for instance rollout.backend and actor.backend",
            text,
            separator.start() if separator else 0,
        )
    return first


class _Parser:
    """Reads from left to right; `position` is where it stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.starts: list[int] = []

    def plan(self) -> AllocationPlan:
        groups = [self.group()]
        while self.take("+"):
            groups.append(self.group())
        if self.peek():
            self.fail(f"expected '+', '|' or the end, got {self.peek()!r}")
        plan = AllocationPlan(tuple(groups))
        self.check_names(plan)
        return plan

    def group(self) -> tuple[ModelAllocation, ...]:
        models = [self.model()]
        first = len(self.starts) - 1
        while self.take("|"):
            models.append(self.model())
        if len(models) == 1:
            return (models[0],)
        for model, start in zip(models, self.starts[first:], strict=True):
            if model.name is None:
                self.fail(
                    f"models that share devices need names: write {model.backend}[name]:...", start
                )
            if model.world_size != models[0].world_size:
                self.fail(
                    f"models that share devices need equally many: {models[0].name} has "
                    f"{models[0].world_size}, {model.name} has {model.world_size}",
                    start,
                )
        return tuple(models)

    def check_names(self, plan: AllocationPlan) -> None:
        seen: set[str] = set()
        for model, start in zip(plan.allocations, self.starts, strict=True):
            if model.name is None and len(plan.allocations) > 2:
                self.fail(
                    f"with three models or more each needs a name: write {model.backend}[name]:...",
                    start,
                )
            if model.name in seen:
                self.fail(f"the name {model.name!r} is given twice", start)
            seen |= {model.name} if model.name is not None else set()

    def model(self) -> ModelAllocation:
        self.peek()
        start = self.position
        self.starts.append(start)
        backend = self.backend()
        name = self.name()
        if not self.take(":"):
            if self.peek() == "(":
                self.fail(f"expected ':' after {backend!r}; a name stands in brackets, [name]")
            self.fail(f"expected ':' after {backend!r}, {_EXAMPLE}")
        strategy = self.hybrid(backend) if self.take("(") else self.flat(backend, start)
        return ModelAllocation(backend, name, strategy)

    def backend(self) -> str:
        start = self.position
        if self.peek() in ("[", "("):
            self.fail(f"expected a backend before {self.peek()!r}, {_EXAMPLE}")
        word = self.match(r"[A-Za-z][A-Za-z_]*")
        if word in BACKENDS and not self.match(r"[0-9]"):
            return word
        self.position = start
        if word in ("attn", "ffn"):
            self.fail("expected a backend, for instance 'megatron:(attn:d4|ffn:d2e2)'")
        if self.match(r"([A-Za-z][0-9]+\s*)+(?![A-Za-z0-9_:\[])"):
            self.fail(f"these are sizes without a backend: write one before, {_EXAMPLE}", start)
        if not word:
            got = self.peek()
            self.fail(f"expected a backend, {_EXAMPLE}, got {repr(got) if got else 'nothing'}")
        whole = self.match(r"[A-Za-z][A-Za-z0-9_]*")
        if whole.lower() in BACKENDS:
            self.fail(f"expected lower case, {whole.lower()!r}, got {whole!r}", start)
        known = ", ".join(BACKENDS)
        self.fail(
            f"expected a backend ({known}), got {whole!r}{did_you_mean(whole, BACKENDS)}", start
        )

    def name(self) -> str | None:
        if not self.take("["):
            return None
        self.peek()
        name = self.match(r"[A-Za-z_][A-Za-z0-9_]*")
        if not name:
            self.fail("expected a name (letters, digits, _) after '['")
        if not self.take("]"):
            self.fail("expected ']' after the name")
        return name

    def flat(self, backend: str, start: int) -> ParallelStrategy:
        self.peek()
        at = self.position
        if self.match(r"attn|ffn"):
            self.fail(f"expected '(' before the parts: {backend}:(attn:...|ffn:...)", at)
        sizes = self.sizes(backend, BACKENDS[backend].dimensions)
        return self.strategy(sizes, start)

    def hybrid(self, backend: str) -> ParallelStrategy:
        opening = self.position - 1
        if "e" not in BACKENDS[backend].dimensions:
            self.fail(f"{backend} does not cut experts: write the sizes without parts", opening)
        self.part("attn")
        sizes = self.sizes("attn", "dptc")
        if not self.take("|"):
            self.fail("expected '|ffn:...' after the sizes of attn")
        start = self.part("ffn")
        experts = self.sizes("ffn", "dpte")
        if not self.take(")"):
            self.fail("expected ')' after the sizes of ffn")
        pipeline = sizes.get("p", 1)
        if experts.get("p", pipeline) != pipeline:
            self.fail(f"ffn has p{experts['p']}, but attn has p{pipeline}: make them equal", start)
        tensor, expert = experts.get("t", 1), experts.get("e", 1)
        strategy = self.strategy({**sizes, "e": expert}, start, expert_tensor=tensor)
        needed = pipeline * tensor * expert
        replicas = experts.get("d", strategy.world_size // needed)
        if replicas * needed != strategy.world_size:
            self.fail(
                f"ffn takes {replicas * needed} devices (d·p·t·e), attn takes "
                f"{strategy.world_size} (d·p·t·c): make them equal, or leave out ffn's d",
                start,
            )
        return strategy

    def part(self, name: str) -> int:
        self.peek()
        start = self.position
        if not self.match(name) or not self.take(":"):
            self.fail(f"expected '{name}:'", start)
        return start

    def sizes(self, owner: str, letters: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        while self.peek() and self.peek() not in "+|)":
            start = self.position
            letter = self.match(r"[A-Za-z]")
            if letter not in DIMENSIONS:
                self.fail(_unknown_letter(letter or self.peek(), letters), start)
            self.peek()
            at_number = self.position
            number = self.match(r"[0-9]+")
            if not number:
                self.fail(f"expected a number after {letter!r}", at_number)
            if number.startswith("0"):
                self.fail(f"expected a size of 1 or more without leading zeros, got {number!r}",
                          at_number)  # fmt: skip
            if letter in sizes:
                self.fail(f"{letter!r} ({DIMENSIONS[letter]} parallel) is given twice", start)
            if letter not in letters and int(number) > 1:
                self.fail(f"{owner} has no {DIMENSIONS[letter]} parallelism: it knows "
                          f"{', '.join(letters)}", start)  # fmt: skip
            sizes[letter] = int(number)
        if not sizes:
            self.fail(f"expected sizes, for instance {letters[0]}1, after {owner!r}")
        return sizes

    def strategy(
        self, sizes: dict[str, int], start: int, *, expert_tensor: int = 1
    ) -> ParallelStrategy:
        named = {f"{DIMENSIONS[letter]}_parallel_size": size for letter, size in sizes.items()}
        try:
            return ParallelStrategy(**named, expert_tensor_parallel_size=expert_tensor)
        except ValueError as error:
            self.fail(str(error), start)

    def peek(self) -> str:
        """Return the next character that is no space, or nothing at the end."""
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        return self.text[self.position : self.position + 1]

    def take(self, symbol: str) -> bool:
        """Step over `symbol` if it comes next."""
        found = self.peek() == symbol
        self.position += found
        return found

    def match(self, pattern: str) -> str:
        """Step over what `pattern` matches here, if anything."""
        found = re.compile(pattern).match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found.group() if found else ""

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        _fail(message, self.text, self.position if position is None else position)


def _fail(message: str, text: str, position: int) -> NoReturn:
    shown = "".join(" " if character.isspace() else character for character in text)
    raise AllocationError(
        f"allocation {text!r}: {message}\n  {shown}\n  {' ' * position}^",
        text=text,
        position=position,
    )


def _unknown_letter(letter: str, letters: str) -> str:
    if letter.lower() in DIMENSIONS:
        return f"expected lower case, {letter.lower()!r}, got {letter!r}"
    meanings = ", ".join(f"{known} ({DIMENSIONS[known]})" for known in letters)
    return f"expected one of {meanings} with its size, got {letter!r}"
