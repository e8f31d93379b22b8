"""What `serve` is made of: the port, the server's life, what it tells people and machines, how it ends."""
