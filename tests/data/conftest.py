"""Settings of the property tests: no deadlines, which a busy machine would miss."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
