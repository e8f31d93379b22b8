"""The inspector under a load."""
