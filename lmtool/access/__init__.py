"""The door of every wire: a policy, what a request shows (key, Origin, Host), and a client or a refusal."""
