"""A conformance suite for any LMTP peer: rule, case, script, seen, subject, outcome; lmtp/SPEC.md is what it rests on.

It stands above the protocol's room because it keeps what was said as traces and drives real peers. Cases are data:
`cases/server/*.toml` and `cases/client/*.toml`.
"""
