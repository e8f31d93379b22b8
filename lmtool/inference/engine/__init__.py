"""The engine: sequences, scheduler, forward pass, sampler, and the host that keeps loaded models."""
