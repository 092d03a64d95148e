"""The keys of the programs other than training: one schema for each."""
