"""vLLM as a backend: a worker in its own Python environment, and lmtool's code inside the engine."""
