"""The embedded engine: scheduler, key-value cache, forward pass, sampler."""
