"""The command line: one file per command; `options` makes commands of functions, `common_options` are those of all."""
