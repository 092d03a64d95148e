"""Entity disambiguation: which entity a mention in a text means, as Bootleg does it."""
