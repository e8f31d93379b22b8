"""Structured generation: from a constraint to guides, which say token by token what a stream may say next."""
