"""The HTTP APIs over a token model: requests, replies, errors, routes, and a room for each API and for tools."""
