"""Solves word problems with a calculator tool, as a LangGraph graph around a LangChain model."""

import operator
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@tool
def calculator(expression: str) -> str:
    """Compute one sum, difference or product of two whole numbers."""
    for sign, compute in OPERATORS.items():
        left, found, right = expression.partition(sign)
        if found and left.isdecimal() and right.isdecimal():
            return str(compute(int(left), int(right)))
    return "?"


class CalculatorAgent:
    async def run(self, data: dict[str, Any], base_url: str, api_key: str) -> float:
        llm = ChatOpenAI(model="policy", base_url=base_url, api_key=api_key)
        policy = llm.bind_tools([calculator])

        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await policy.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode([calculator]))
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", tools_condition)
        graph.add_edge("tools", "ask")
        try:
            state = await graph.compile().ainvoke(
                {"messages": data["messages"]}, {"recursion_limit": 14}
            )
        except GraphRecursionError:
            return 0.0
        return float(state["messages"][-1].content == f"A{data['answer']}")
