"""Fixtures of the tests of data."""

from __future__ import annotations

from tests.data.hub_fixtures import hub

__all__ = ["hub"]
