"""Entity disambiguation: which entity a mention in a text means (seed documents 000 and 001)."""
