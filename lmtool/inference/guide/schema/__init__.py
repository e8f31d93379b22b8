"""JSON Schemas rewritten without the keywords that llguidance lacks: equivalent, or stricter with a warning."""
