"""Settings of one user: option declarations, the data folder, prompt parameters, terminal size and colours."""
