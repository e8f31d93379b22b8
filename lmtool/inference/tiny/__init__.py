"""The embedded default model: its weights, their path, and the recipe that makes them."""
