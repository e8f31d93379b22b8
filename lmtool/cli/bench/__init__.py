"""Commands below `lmtool bench`: engine, serve, soak, gateway, inspect."""
