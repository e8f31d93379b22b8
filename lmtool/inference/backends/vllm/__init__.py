"""vLLM as a backend: a worker in an environment of its own, and our code inside its engine."""
