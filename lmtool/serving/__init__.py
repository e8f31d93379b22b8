"""A server's life: configuration, models, protocols, port, health, events, and the way it ends."""
