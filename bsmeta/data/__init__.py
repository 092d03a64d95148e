"""The stream of training data: shards -> lines -> windows -> packed sequences -> micro-batches.

One module per stage, in the order in which a document passes through them: `shards` (which files),
`plan` (stream positions and their division among processes), `lines` (reading, over `inflate` and
`index`), `windows` (documents become sequences, through `encoding`, `pieces`, `packing` and
`packed`), `streams` (one logical stream), `loader` (the streams of a rank in order, through loader
processes), `stream` (what a task passes to the trainer).
"""
