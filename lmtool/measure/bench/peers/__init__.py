"""The engines under test, each in a process of its own: the worker program, and a `Peer` for each engine."""
