"""Tools that a model may call: definitions, the schema of their calls, and readers of how models write them."""
