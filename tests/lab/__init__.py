"""What developers measure; `python -m tests.lab` lists it."""
