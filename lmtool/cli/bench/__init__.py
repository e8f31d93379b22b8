"""Commands below `lmtool bench`: engine, kernels, serve, soak, gateway, inspect."""
