"""Other people's HTTP APIs as pure translations: a chat request in, an HTTP request out; body bytes in, events out."""
