"""Studies: arms × seeds are trained, their checkpoints measured, and the claims tested."""
