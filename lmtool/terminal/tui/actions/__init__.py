"""Implementations of the actions in the table of keys."""
