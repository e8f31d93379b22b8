"""HTTP APIs of other providers as pure translations: chat request to HTTP request, body bytes to answer events."""
