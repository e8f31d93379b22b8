"""Commands below `lmtool bench`: engine, kernels, serve, gateway, inspect."""
