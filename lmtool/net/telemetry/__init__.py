"""What a server tells of its requests: request metrics, observed models, observations, process memory."""
