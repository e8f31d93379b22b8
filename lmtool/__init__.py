"""Load a language model once, in a long-lived process; stream its tokens to everything else."""

__version__ = "0.1.0"
