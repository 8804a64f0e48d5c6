"""Planning trials, training them in groups, keeping their rows, judging them (docs/sweeps.md)."""
