"""Anthropic's Messages API: requests, events, errors."""
