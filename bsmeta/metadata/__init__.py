"""Metadata: read records from a line, sample types, render text, mask tokens.

The flow is `decoding` (a line becomes a `Document` of `records`) -> `sampling` (which types it
gets) -> `rendering` (prefix, body, suffix, and the metadata spans in them) -> `masks` (which tokens
contribute to the loss). Each type is one class in `processors` that holds everything known about it
(`metadata_type`). Nothing here depends on a tokenizer, torch or a file.
"""
