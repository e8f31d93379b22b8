"""Recorded conversations: header, events, lines, reader, writer, recorder and proxy of the `lmtp_trace` format."""
