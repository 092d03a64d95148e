"""Metadata: read records from a line, sample types, render text.

The flow is `decoding` (a line becomes a `Document`) -> `rendering` (which types it gets; prefix,
body, suffix, and the metadata spans in them). Each type is one class in `processors` that holds
everything known about it (`metadata_type`). Nothing here depends on a tokenizer, torch or a file.
"""
