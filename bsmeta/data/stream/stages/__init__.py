"""The stages of a window, in the order in which its documents pass them.

decode → guard → sample → lend → render → reject → keep_text → encode → cut → pack

Each stage is a generator or a small callable with the little state that it needs, in a file of its
own; `items` defines the items that pass from one to the next. Documents flow one at a time: each
stage pulls the next document from the one before it. There are three exceptions: `lend` reads the
metadata of all lines in advance, `encode` takes a batch of documents, and `pack` the whole window.
`window_maker` connects the stages.
"""
