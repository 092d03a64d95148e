"""Errors that users can fix."""

from __future__ import annotations

from bsmeta.core.errors import explain_missing_extra


def test_the_extra_of_a_missing_module_is_named() -> None:
    error = explain_missing_extra(ModuleNotFoundError("No module named 'sklearn'", name="sklearn"))
    assert str(error) == (
        "No module named 'sklearn', which is installed by: pip install 'bsmeta[tables]'"
    )


def test_a_module_without_a_build_for_this_python_is_not_suggested() -> None:
    missing = ModuleNotFoundError("No module named 'pycld2'", name="pycld2")
    assert str(explain_missing_extra(missing, (3, 14))) == (
        "No module named 'pycld2': found Python 3.14, expected at most 3.13, the newest for which "
        "it is built. Leave out the annotator language, or create an environment with an older "
        "Python"
    )
    assert str(explain_missing_extra(missing, (3, 13))) == (
        "No module named 'pycld2', which is installed by: pip install 'bsmeta[annotate]'"
    )


def test_an_error_for_a_module_of_no_extra_is_unchanged() -> None:
    assert explain_missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
