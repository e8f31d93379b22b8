"""OpenAI's HTTP API over a token model: requests, replies, events, errors, routes."""
