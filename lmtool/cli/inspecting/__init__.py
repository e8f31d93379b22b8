"""What `inspect` is made of besides the inspector: its demo server, how it chooses a source, what needs no terminal."""
