"""OpenAI's chat completions and text completions: objects and events of their replies."""
