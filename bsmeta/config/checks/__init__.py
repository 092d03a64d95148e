"""Checks of a run before anything is loaded: values, files, launch, DeepSpeed."""
