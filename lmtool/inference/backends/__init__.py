"""Other people's engines behind the model interface, and the registry of all that can be named."""
