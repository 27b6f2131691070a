"""Pure tensor code: advantages and losses. No I/O, no models, no optimisers."""
