"""Tool calls: definitions of tools, grammars and readers for the formats of model families."""
