"""Sample tokens: one protocol, several engines behind it. Knows nothing of training."""
