"""Documents as a model sees them: the output of `explain.py` for a training configuration.

The flow is `selection` (the documents, built by the code of the training data) -> `facts` (tokens,
descriptions, JSON) -> `views` (HTML page, terminal).
"""
