"""OpenAI's chat completions and text completions: requests, and whole and streamed replies."""
