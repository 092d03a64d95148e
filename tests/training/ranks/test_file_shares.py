"""Files are divided among the ranks that share a run folder."""

from __future__ import annotations

from bsmeta.training.ranks.file_shares import divide_files, select_unique_files
from tests.training.ranks.rank_threads import run_ranks


def test_files_are_divided_by_size_among_the_ranks_that_share_them() -> None:
    sizes = {"a": 9, "b": 5, "c": 5, "d": 0, "e": 0}
    shares = run_ranks(2, lambda processes: divide_files(sizes, processes))
    assert shares == [["a", "d", "e"], ["b", "c"]]

    folders = [{"a": 1, "b": 2}, {}, {"b": 2, "c": 3}, {}]
    leaders = (0, 0, 2, 2)
    files = run_ranks(
        4,
        lambda processes: select_unique_files(lambda: folders[processes.rank], processes),
        leaders,
    )
    assert files == [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"c": 3}, {"c": 3}]
    shares = run_ranks(4, lambda processes: divide_files(files[processes.rank], processes), leaders)
    assert shares == [["b"], ["a"], ["c"], []]
