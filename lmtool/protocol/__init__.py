"""Wire protocols, each with its server and client: LMTP, HTTP APIs, Evergreen, and calls to providers."""
