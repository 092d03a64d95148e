"""The fault matrix: runs that are killed, starved and lied to (see `MATRIX.md`)."""
