"""Files that a stranger may give, damaged and forged in all ways, read by every reader."""
