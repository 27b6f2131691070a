"""A small word tokenizer with a template of the Qwen family's shape."""

from transformers import PreTrainedTokenizerFast

from areal_agent.data.tokenizer import build_word_tokenizer

CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + (c.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    tokenizer = build_word_tokenizer(["user", "assistant", "ab"], chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer
