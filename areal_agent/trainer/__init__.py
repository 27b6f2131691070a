"""What composes a run: the loop, and the one place where everything is built."""
