"""The embedded default model: path (where it lies), corpus (what it learnt), train (how), evaluate (how well)."""
