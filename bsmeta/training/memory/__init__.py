"""The memory of a run, predicted before it starts: weights, activations, the device."""
