"""Members of enumerations are read in the forms of all versions of Python, and nothing else is."""

from __future__ import annotations

import enum
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from bsmeta.training.checkpoints.pickled_enums import make_member_reader
from bsmeta.training.checkpoints.shard_metadata import read_pickled_description


class Attribute:
    """Pickled as Python 3.11.2 pickles a member of an enumeration: `getattr(owner, name)`."""

    def __init__(self, owner: Any, name: str) -> None:
        self._parts = (owner, name)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, self._parts


class Color(enum.Enum):
    RED = 1


class Shape(enum.Enum):
    ROUND = 1


def test_a_member_is_read_by_its_name() -> None:
    read_member = make_member_reader(Color, Shape)
    assert read_member(Color, "RED") is Color.RED
    assert read_member(Shape, "ROUND") is Shape.ROUND


@pytest.mark.parametrize(
    ("owner", "name"), [(Color, "__init__"), (Color, "BLUE"), (os, "system"), ("a", "format")]
)
def test_any_other_attribute_is_refused(owner: Any, name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="GLOBAL getattr: found"):
        make_member_reader(Color)(owner, name)


@pytest.mark.parametrize("protocol", [2, 4])
def test_descriptions_of_tensors_have_formats_in_either_form(protocol: int) -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    for value in (member, Attribute(_MEM_FORMAT_ENCODING, member.name)):
        assert read_pickled_description(pickle.dumps(value, protocol)) is member
    with pytest.raises(pickle.UnpicklingError, match="getattr"):
        read_pickled_description(pickle.dumps(Attribute(_MEM_FORMAT_ENCODING, "mro"), protocol))
