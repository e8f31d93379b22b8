"""The gateway beside a bare forwarder and LiteLLM."""
