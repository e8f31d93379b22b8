"""`lab gpu`, all that is to be known of a GPU in one command: sections, the worker that runs them, the card."""
