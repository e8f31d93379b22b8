"""The sections of `lab gpu`, each a function of a `Bench`; they run in the worker's process."""
