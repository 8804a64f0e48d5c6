"""Sweeps of a model of one's own: `Setup.sweep` and `Setup.tune` (docs/your-model.md)."""
