"""OpenAI's Responses API: requests, routes, events, and a bounded store of responses."""
