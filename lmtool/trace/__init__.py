"""Recorded conversations: the `lmtp_trace` format, recording, replay, comparison and export."""
