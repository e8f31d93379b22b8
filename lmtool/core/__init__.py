"""Types and interfaces that every package shares: requests, outputs, errors, constraints, sampling parameters."""
