"""From text to tokens: the tokenizer, its backends, encoding with masks, and chunks."""
