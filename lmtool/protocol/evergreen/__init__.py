"""Evergreen: sessions of nodes and actions. Messages, codec, session (both ends alike), actions, connection, faces."""
