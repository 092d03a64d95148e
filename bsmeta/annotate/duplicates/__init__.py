"""Finds exact and near duplicates among pages, and documents that are held out."""
