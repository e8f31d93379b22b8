"""Sources of events: a server, a proxy, a trace file, a demo."""
