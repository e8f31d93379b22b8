"""Commands below `lmtool bench`: engine, kernels, host, serve, soak, gateway, inspect."""
