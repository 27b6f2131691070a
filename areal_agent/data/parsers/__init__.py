"""How models write tool calls, and how replies are cut into reasoning, text and calls."""
