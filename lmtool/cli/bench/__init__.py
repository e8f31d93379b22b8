"""Commands below `lmtool bench`: engine, serve."""
