"""Annotation: raw pages become shards of text with metadata.

`sources` reads pages, `page` parses their HTML, one annotator for each metadata type records what
it finds, and `pipeline` writes shards that training streams as they are.
"""
