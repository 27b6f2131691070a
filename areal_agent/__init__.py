"""Asynchronous reinforcement learning for LLM agents. Importing this costs no torch."""
