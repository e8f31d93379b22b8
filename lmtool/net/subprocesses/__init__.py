"""Processes that do long work in Python for the server: done there, it would hold the lock that the engine needs."""
