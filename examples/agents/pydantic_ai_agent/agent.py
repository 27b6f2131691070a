"""Solves word problems with a calculator tool, through PydanticAI and nothing else."""

import operator
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculator(expression: str) -> str:
    """Compute one sum, difference or product of two whole numbers."""
    for sign, compute in OPERATORS.items():
        left, found, right = expression.partition(sign)
        if found and left.isdecimal() and right.isdecimal():
            return str(compute(int(left), int(right)))
    return "?"


class CalculatorAgent:
    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, tools=[calculator], retries={"output": 0})
        [question] = data["messages"]
        try:
            result = await agent.run(question["content"], usage_limits=UsageLimits(request_limit=7))
        except (UnexpectedModelBehavior, UsageLimitExceeded):
            return 0.0
        return float(result.output == f"A{data['answer']}")
