"""Metadata: records read from a line, types chosen, text rendered, tokens masked.

The flow is `decoding` (a line becomes a `Document` of `records`) -> `sampling` (which types it is
given) -> `rendering` (prefix, body, suffix, and where metadata stands in them) -> `masks` (which
tokens loss is taken of). A type is one class of `processors`, with every fact that is known about
it (`metadata_type`). Nothing here knows a tokenizer, torch or a file.
"""
