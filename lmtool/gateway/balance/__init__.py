"""The LMTP balancer: one LMTP endpoint in front of several servers."""
