"""Episodes in, batches out."""
