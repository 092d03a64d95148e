"""The endless, deterministic training stream: windows, logical streams, micro-batches, state."""
