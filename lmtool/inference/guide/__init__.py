"""Structured generation: compiles constraints into guides, which decide the legal next tokens of a stream."""
