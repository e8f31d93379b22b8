"""The Language Model Transport Protocol: messages, codec, session (both ends), server, client, and its SPEC.md."""
