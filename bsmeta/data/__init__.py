"""The stream of training data: shards -> lines -> windows -> packed sequences -> micro-batches.

One module a stage, in the order in which a document passes them: `shards` (which files), `plan`
(which stream reads what, and where it stands), `lines` (reading, over `inflate` and `index`),
`windows` (documents become sequences, through `encoding`, `pieces`, `packing` and `packed`),
`streams` (one logical stream), `loader` (the streams of a rank in order, through loader processes),
`stream` (what a task hands to the trainer).
"""
