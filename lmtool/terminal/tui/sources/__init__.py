"""Where the events of the inspector come from: a server of its own prompts, a proxy, a file, a demo."""
