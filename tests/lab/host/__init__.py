"""The engine's own time a step, without a model."""
