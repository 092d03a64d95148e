"""Raw pages become shards of text with metadata, which training streams as they are."""
