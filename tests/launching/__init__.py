"""The launch scripts with real processes, on the CPU."""
