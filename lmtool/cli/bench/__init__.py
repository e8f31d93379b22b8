"""Commands below `lmtool bench`: engine, serve, gateway, inspect."""
