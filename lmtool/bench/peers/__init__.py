"""Engines to be measured, each in a process of its own: a worker, and one `Peer` a module."""
