"""Metadata: reads records from a line, samples types, renders text.

The flow is `decoding` (a line becomes a `Document`) -> `rendering` (which types it gets; prefix,
body, suffix, and the metadata spans in them). Each type is one class in `processors` that holds
everything known about it (`metadata_type`). Nothing here depends on a tokenizer, torch or a file.
"""
