"""How the embedded model is made: its corpus, tokenizer, training and evaluation. Not in the wheel."""
