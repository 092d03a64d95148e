"""Reads members of enumerations from pickles, whose form depends on the version of Python.

Python 3.11.2, the version of Debian 12, pickles a member as a call of `getattr` with its class and
its name, later versions as a call of its class with its value. A reader with an allow-list must
accept both, and `getattr` for nothing else.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable
from typing import Any

NAMES_OF_GETATTR = ("builtins.getattr", "__builtin__.getattr")
"""Names of `getattr` in pickles: of protocol 3 and later, and of earlier protocols."""


def make_member_reader(*classes: type[enum.Enum]) -> Callable[[Any, Any], enum.Enum]:
    """Returns a replacement for `getattr` in pickles that only returns members of the classes.

    Raises:
        UnpicklingError: By the returned function, for any other object or attribute.
    """

    def read_member(owner: Any, name: Any) -> enum.Enum:
        for enumeration in classes:
            if owner is enumeration and name in enumeration.__members__:
                return enumeration[name]
        raise pickle.UnpicklingError(f"GLOBAL getattr: found {name!r} of {owner!r}")

    return read_member
