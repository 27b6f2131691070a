"""The gateway: agents speak the OpenAI protocol to it, and it keeps exactly what was sampled."""
