"""Settings: what a run is told, checked before anything starts. Needs no torch."""
