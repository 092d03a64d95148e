"""From files and a command line to one configuration: what Hydra reads, and what it may not."""
