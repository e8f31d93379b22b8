"""vLLM as a backend: a worker in an environment of its own, and what its engine is asked."""
