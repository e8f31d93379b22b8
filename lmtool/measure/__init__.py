"""Measurements of servers: benchmarks, the API audit, and protocol conformance."""
