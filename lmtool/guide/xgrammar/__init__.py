"""Structured generation by xgrammar: sources in a checked notation, compiled in a process that can be killed."""
