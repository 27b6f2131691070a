"""Move weights: one protocol, several trainers behind it. Knows nothing of inference."""
