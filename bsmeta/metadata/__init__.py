"""Metadata: reads records from a line, samples types, renders text.

The flow is `decoding` (a line becomes a `Document`) -> `sampling` (the types to render) ->
`rendering` (prefix, body, suffix, and the metadata spans in them). Each type is a class in
`processors` with all of its properties (`metadata_type`). The package does not depend on
tokenizers, torch or files.
"""
