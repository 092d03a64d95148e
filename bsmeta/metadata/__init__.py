"""Metadata: reads records from a line, samples types, renders text.

The flow is `decoding` (a line becomes a `Document`) -> `rendering` (the types it is rendered with;
prefix, body, suffix, and the metadata spans in them). Each type is a class in `processors` with all
of its properties (`metadata_type`). The package depends on neither tokenizers, torch nor files.
"""
