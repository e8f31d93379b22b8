"""The chat client: prompts, running streams, views of them, the conversation, scores of texts."""
