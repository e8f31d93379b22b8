"""The conformance suites on the command line: server, client."""
