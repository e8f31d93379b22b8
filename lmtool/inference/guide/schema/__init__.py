"""JSON Schemas rewritten without the keywords that the automata library does not know: same meaning, or narrower."""
