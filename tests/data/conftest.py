"""Settings of the property tests (no deadlines, which a busy machine would miss), and fixtures."""

from __future__ import annotations

from hypothesis import settings

from tests.data.hub_fixtures import hub

__all__ = ["hub"]

settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
