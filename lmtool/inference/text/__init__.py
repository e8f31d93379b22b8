"""Text over token ids: tokenizer, detokenizer, stop strings, chat template, and the model wrapper that applies them."""
