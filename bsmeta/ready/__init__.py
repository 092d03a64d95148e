"""Ready-made models: trained once on the shipped texts, and kept in the user's cache folder."""
