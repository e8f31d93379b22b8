"""One API over many servers: pools of providers, the LMTP balancer, and the routing both use."""
