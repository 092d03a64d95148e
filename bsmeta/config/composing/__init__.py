"""Composes files and a command line into one configuration, with Hydra."""
