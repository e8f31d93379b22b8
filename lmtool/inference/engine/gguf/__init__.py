"""GGUF files (llama.cpp's) in our own engine: header, configuration, tokenizer, weights, and the loader."""
