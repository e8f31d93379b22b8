"""Other people's HTTP APIs as pure translations: bytes of an answer's body in, answer events out."""
