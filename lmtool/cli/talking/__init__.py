"""What `chat` and `score` are made of: prompts, streams in flight, the ways to show them, the conversation."""
