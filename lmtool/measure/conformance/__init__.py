"""A conformance suite for any LMTP peer: rule, case, script, check, transcript, result; lmtp/SPEC.md is its ground.

It stands above the protocol's room because it keeps what was said as traces and drives real peers. Cases are data:
`cases/server/*.toml` and `cases/client/*.toml`.
"""
