"""Fixtures of the tests of data."""

from __future__ import annotations

from tests.data.azure_server import az
from tests.data.cloud_storage_server import gs
from tests.data.hub_fixtures import hub, stored

__all__ = ["az", "gs", "hub", "stored"]
