"""Choosing among members that can serve a request: strategies, health by outcomes, passes. Pure: no clock, no I/O."""
