"""Lists and reads remote files: the Hub, buckets, Azure, and any that TensorFlow can open."""
