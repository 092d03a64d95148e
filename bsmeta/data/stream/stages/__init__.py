"""The stages of a window, in the order in which its documents pass them.

decode → guard → sample → lend → render → reject → keep_text → encode → cut → pack

Each stage is a generator, or a callable with little state, in its own file; `items` defines the
items that pass from stage to stage. Documents flow one at a time: each stage pulls the next
document from the stage before it. There are three exceptions: `lend` reads the metadata of all
lines in advance, `encode` takes a batch of documents, and `pack` the whole window. `window_maker`
connects the stages.
"""
