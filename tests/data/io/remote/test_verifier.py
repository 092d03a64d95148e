"""The content of a remote file, compared with the hash that its store lists."""

from __future__ import annotations

import hashlib

import pytest

from bsmeta.data.io.remote.verifier import Verifier

MD5_OF_ABC = "900150983cd24fb0d6963f7d28e17f72"


@pytest.mark.parametrize(
    ("chunks", "is_doubtful", "is_right"),
    [
        ([b"a", b"bc"], False, True),
        ([b"a", b"bc"], True, True),
        ([b"abd"], False, False),
        ([b"abd"], True, None),
    ],
)
def test_a_differing_hash_is_wrong_unless_the_hash_may_be_of_other_data(
    chunks: list[bytes], is_doubtful: bool, is_right: bool | None
) -> None:
    verifier = Verifier(hashlib.md5(), MD5_OF_ABC, lambda: is_doubtful)
    for chunk in chunks:
        verifier.update(chunk)
    assert verifier.matches_hash() is is_right
