"""Third-party engines as token models, and the registry of backends."""
