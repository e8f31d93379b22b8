"""True if a server's logprobs are true: questions, answers, evidence, checks, findings, cards; over HTTP and LMTP."""
