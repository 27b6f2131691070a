"""Measure a policy on held-out problems, without disturbing its training."""
