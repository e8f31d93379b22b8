"""Anthropic's Messages API: requests, routes, and the messages and events of answers."""
