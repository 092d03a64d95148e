"""Metadata: records read from a line, types chosen, text rendered, tokens masked.

The flow is `records` (a line becomes a `Document`) -> `sampling` (which types it is given) ->
`rendering` (prefix, body, suffix, and where metadata stands in them) -> `masks` (the same in
tokens). `processors` has one class a type. Nothing here knows a tokenizer, torch or a file.
"""
