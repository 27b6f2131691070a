"""The HTTP side of the embedded server: OpenAI's routes, control routes, metrics."""
