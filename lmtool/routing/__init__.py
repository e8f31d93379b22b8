"""Choosing among members that can serve a request: strategies, prompt prefixes, health. Pure: no clock, no I/O."""
