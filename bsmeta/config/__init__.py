"""Configuration: the schema (dataclasses), its checks, and how an entry point composes it."""
