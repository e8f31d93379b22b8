"""The sections of `bench gpu`, each a function of a `Bench`; they run in the worker's process."""
