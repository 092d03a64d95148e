"""Finds exact and near duplicates among pages, and copies of held-out pages."""
