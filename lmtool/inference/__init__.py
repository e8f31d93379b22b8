"""Computes tokens: the engine, text handling, constrained decoding, other backends, the included model."""
