"""Network plumbing without a protocol: access control, telemetry, subprocesses, an HTTP client, Unix sockets."""
