"""OpenAI's Responses API: requests, typed events, and a bounded memory of what was said."""
