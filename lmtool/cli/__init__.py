"""The command line: one file per command; `options` and `output` are shared, `wiring` is where rooms meet."""
