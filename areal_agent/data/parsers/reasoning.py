"""Reasoning: the text between two markers at the start of a reply, kept apart from the rest."""

from dataclasses import dataclass

from areal_agent.errors import DataError


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Between which texts a model thinks.

    Where the prompt itself opens the reasoning, a reply begins inside it.
    """

    begin: str
    end: str

    def is_opened(self, prompt: str) -> bool:
        """Tell whether a prompt ends with open reasoning."""
        return prompt.rstrip().endswith(self.begin)

    def split(self, text: str, *, opened: bool) -> tuple[str, str]:
        """Return the reasoning of a whole reply, without white space around it, and the rest.

        Reasoning that never ends is all of the reply.
        """
        thought = text.lstrip()
        if thought.startswith(self.begin):
            thought = thought[len(self.begin) :]
        elif not opened:
            return "", text
        thought, _, content = thought.partition(self.end)
        return thought.strip(), content.lstrip()

    def joined(self, thought: str, content: str) -> str:
        """Write both as one text, as models of this kind do."""
        return f"{self.begin}\n{thought}\n{self.end}\n\n{content}"


REASONING_PARSERS: dict[str, Reasoning | None] = {
    "none": None,
    "think": Reasoning("<think>", "</think>"),
}
"""Ways to reason by the name that settings and model folders use."""


def get_reasoning(name: str) -> Reasoning | None:
    """Return the way to reason that is called `name`.

    Raises:
        DataError: there is none of that name.
    """
    if name not in REASONING_PARSERS:
        raise DataError(
            f"expected a reasoning parser, one of {sorted(REASONING_PARSERS)}, got {name!r}: "
            'correct reasoning_parser in the settings or "reasoning_parser" in the model\'s '
            "tokenizer_config.json"
        )
    return REASONING_PARSERS[name]


def detect_reasoning(template: str) -> str:
    """Return the name of the way to reason that a chat template speaks of."""
    return "think" if "</think>" in template else "none"
