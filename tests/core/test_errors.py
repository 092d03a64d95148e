"""Errors that users can fix."""

from __future__ import annotations

from bsmeta.core.errors import explain_missing_extra


def test_the_extra_of_a_missing_module_is_named() -> None:
    error = explain_missing_extra(ModuleNotFoundError("No module named 'sklearn'", name="sklearn"))
    assert str(error) == (
        "No module named 'sklearn', which is installed by: pip install 'bsmeta[tables]'"
    )


def test_a_missing_module_of_no_extra_stays_as_it_is() -> None:
    assert explain_missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
