"""Solves word problems with a calculator tool, through the Anthropic SDK and nothing else."""

import operator
from typing import Any

from anthropic import AsyncAnthropic

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALCULATOR: Any = {
    "name": "calculator",
    "description": "Compute one sum, difference or product of two whole numbers.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
}


def calculate(expression: str) -> str:
    for sign, compute in OPERATORS.items():
        left, found, right = expression.partition(sign)
        if found and left.isdecimal() and right.isdecimal():
            return str(compute(int(left), int(right)))
    return "?"


class CalculatorAgent:
    async def run(self, data: dict[str, Any], base_url: str, api_key: str) -> float:
        messages: list[Any] = list(data["messages"])
        async with AsyncAnthropic(base_url=base_url, api_key=api_key) as client:
            for _ in range(7):
                answer = await client.messages.create(
                    model="policy", max_tokens=256, messages=messages, tools=[CALCULATOR]
                )
                messages.append({"role": "assistant", "content": answer.content})
                results: list[Any] = [
                    {"type": "tool_result", "tool_use_id": u.id, "content": calculate(**u.input)}
                    for u in answer.content
                    if u.type == "tool_use"
                ]
                if not results:
                    text = "".join(b.text for b in answer.content if b.type == "text")
                    return float(text == f"A{data['answer']}")
                messages.append({"role": "user", "content": results})
        return 0.0
