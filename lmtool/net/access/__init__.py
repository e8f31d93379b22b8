"""Access control of every protocol: a policy; a request's key, Origin and Host in, a refusal out."""
