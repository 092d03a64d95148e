"""Documents as a model sees them: what `explain.py` shows of a training configuration.

The flow is `selection` (which documents; made by the very code that makes training data) ->
`tokens` (what each token reads and is) -> `lines` (JSON), `terminal` or `page` (HTML).
"""
