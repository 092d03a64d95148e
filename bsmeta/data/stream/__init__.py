"""The endless, deterministic training stream: windows, logical streams, batches, state."""
