"""The demo's chat format without its model, and an engine that says given texts in turn."""

from pathlib import Path

from areal_agent.data.chat import ChatFormat
from areal_agent.data.tokenizer import build_word_tokenizer
from areal_agent.testing.fakes import FakeEngine, Reply

EXAMPLE = Path(__file__).parents[3] / "examples" / "calculator"


def demo_chat() -> ChatFormat:
    template = (EXAMPLE / "chat_template.jinja").read_text(encoding="utf-8")
    return ChatFormat(build_word_tokenizer(["Sam", "How"], chat_template=template), "bracket")


def says(chat: ChatFormat, *texts: str) -> FakeEngine:
    """An engine whose replies are `texts`, each ended by the model unless it ends in ``...``."""
    left = list(texts)

    def script(request: object) -> Reply:
        text = left.pop(0)
        ended = not text.endswith("...")
        text = f"{text}<eos>" if ended else text.removesuffix("...")
        ids = chat.tokenizer.encode(text, add_special_tokens=False)
        logprobs = [-0.25 * (i + 1) for i in range(len(ids))]
        return Reply(ids=ids, logprobs=logprobs, stop_reason="stop" if ended else "length")

    return FakeEngine(script)
