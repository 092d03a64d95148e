"""Files on the Hub: exactly their bytes, or an error that names the cause."""

from __future__ import annotations

import logging
import os
import random
import threading
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import constants

from bsmeta.core.errors import DataError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import measure_file, open_file
from bsmeta.data.io.remote import store, stores
from bsmeta.data.io.remote.remote_file import RemoteFile
from bsmeta.data.io.remote.store import read_requested_wait
from tests.data.forked import read_in_fork
from tests.data.hub_fixtures import BLOCK, CONTENT, hub_file
from tests.data.hub_server import TOKEN, Answer, Hub, cutting, failing, is_anything, is_content
from tests.waiting import STUCK_S


def read(path: FileRef) -> bytes:
    with open_file(path) as file:
        return file.read()


def list_ranges(hub: Hub) -> list[str]:
    return [asked.removeprefix("bytes=") for asked in hub.content_requests()]


def test_a_file_is_read_in_blocks_and_cached(hub: Hub, tmp_path: Path) -> None:
    path = hub_file(tmp_path)
    assert read(path) == CONTENT
    assert measure_file(path) == len(CONTENT)
    assert list_ranges(hub) == ["0-999", *(f"{i}000-{i}999" for i in range(1, 7)), "7000-7699"]
    assert read(path) == CONTENT
    assert len(list_ranges(hub)) == 8  # the second time from the cache


def test_a_process_that_is_forked_after_a_read_reads_too(hub: Hub, tmp_path: Path) -> None:
    path = hub_file(tmp_path, cache_bytes=0)
    assert read(path) == CONTENT
    assert read_in_fork(path) == CONTENT
    assert read(path) == CONTENT
    assert len(list_ranges(hub)) == 3 * 8


def test_any_position_can_be_read_in_any_order(hub: Hub, tmp_path: Path) -> None:
    generator = random.Random(1)
    with open_file(hub_file(tmp_path)) as file:
        for _ in range(200):
            start, count = generator.randrange(8000), generator.choice([1, 100, 3000])
            assert file.seek(start) == start
            assert file.read(count) == CONTENT[start : start + count]
        assert file.seek(-10, os.SEEK_END) == 7690
        assert file.read() == CONTENT[-10:]


def test_the_next_block_is_fetched_ahead_only_under_sequential_reading(
    hub: Hub, tmp_path: Path
) -> None:
    with RemoteFile(hub_file(tmp_path)) as file:
        assert file.read(10) == CONTENT[:10]
        assert list_ranges(hub) == ["0-999"]
        assert file.read(10) == CONTENT[10:20]
        file._prefetch.wait()
        assert list_ranges(hub) == ["0-999", "1000-1999"]


def test_the_token_goes_to_the_hub(hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    assert read(hub_file(tmp_path)) == CONTENT


@pytest.mark.parametrize("where", [is_content, is_anything])
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_few_bad_answers_are_retried(
    hub: Hub, tmp_path: Path, status: int, where: object
) -> None:
    hub.faults = [failing(status, 3, {"Retry-After": "0"}, where)]  # type: ignore[arg-type]
    assert read(hub_file(tmp_path)) == CONTENT


def test_a_cut_connection_is_resumed_at_the_next_byte(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [cutting(333, 3)]
    assert read(hub_file(tmp_path)) == CONTENT
    assert list_ranges(hub)[:5] == ["0-999", "333-999", "666-999", "999-999", "1000-1999"]


def test_cuts_after_some_progress_do_not_count_as_failures(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [cutting(100, 80)]
    assert read(hub_file(tmp_path, retries=1)) == CONTENT


def test_a_hanging_connection_is_replaced(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
    released, hung = threading.Event(), threading.Event()

    def hang(answer: Answer) -> bool:
        if hung.is_set() or not is_content(answer):
            return False
        hung.set()
        released.wait(STUCK_S)
        return True

    hub.faults = [hang]
    assert read(hub_file(tmp_path)) == CONTENT
    assert hung.is_set()
    released.set()


def test_an_outage_of_the_hub_is_named_with_the_byte(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [failing(500, 1000, where=lambda request: "-3999" in request.range)]
    with open_file(hub_file(tmp_path)) as file:
        assert file.read(3000) == CONTENT[:3000]
        with pytest.raises(DataError) as error:
            file.read(1)
    assert str(error.value).startswith(
        f"hf://datasets/owner/name@c0ffee{'0' * 34}/data.bin, byte 3000 of 7700: given up after 5 "
        f"failures in a row, the last one: HTTP 500; see whether {hub.endpoint} can be reached"
    )


def test_a_file_that_is_always_cut_at_the_same_byte_is_given_up(hub: Hub, tmp_path: Path) -> None:
    def cut_at_500(answer: Answer) -> bool:
        if not is_content(answer) or answer.asked()[0] > 500:
            return False
        answer.give_part(500 - answer.asked()[0])
        return True

    hub.faults = [cut_at_500]
    with pytest.raises(DataError, match=r"byte 500 of 7700: given up after 5 failures .*Protocol"):
        read(hub_file(tmp_path))
    assert list_ranges(hub) == ["0-999"] + ["500-999"] * 4


def test_a_refused_connection_is_named_without_credentials(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = "http://u:pw@127.0.0.1:9"
    template = f"{nobody}/{{repo_id}}/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    with pytest.raises(DataError, match=r"ConnectError: .*see whether http://127\.0\.0\.1:9 can"):
        read(hub_file(tmp_path))


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {}, r"HTTP 401: the token \(HF_TOKEN\) is not valid, or may not read"),
        (403, {"X-Error-Code": "GatedRepo"}, r"HTTP 403: the token .*access to a gated one is"),
        (404, {"X-Error-Code": "EntryNotFound"}, "HTTP 404: there is no such file or folder"),
        (
            404,
            {"X-Error-Code": "RevisionNotFound"},
            "no such revision; correct data_config.data",
        ),
        (404, {"X-Error-Code": "RepoNotFound"}, "there is no such data set, file or revision"),
        (410, {}, "HTTP 410: the request is refused"),
    ],
)
def test_refusals_are_not_retried(
    hub: Hub, tmp_path: Path, status: int, headers: dict[str, str], message: str
) -> None:
    hub.faults = [failing(status, 1000, headers, where=is_anything)]
    with pytest.raises(DataError, match=message):
        read(hub_file(tmp_path))
    assert len(hub.requests) == 1


def test_a_missing_token_is_explained(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = TOKEN
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    with pytest.raises(DataError, match="private or gated, or does not exist; set HF_TOKEN to"):
        read(hub_file(tmp_path))


def test_changed_content_at_the_same_path_is_refused(hub: Hub, tmp_path: Path) -> None:
    with open_file(hub_file(tmp_path, cache_bytes=0)) as file:
        assert file.read(BLOCK) == CONTENT[:BLOCK]
        hub.files["data.bin"] = CONTENT[::-1]
        file.seek(5000)
        with pytest.raises(DataError, match=r"data\.bin: the file has changed since it was listed"):
            file.read(1)


def test_an_answer_with_another_commit_or_size_is_refused(hub: Hub, tmp_path: Path) -> None:
    def other_size(answer: Answer) -> bool:
        if is_content(answer):
            answer.give(206, {"Content-Range": "bytes 0-999/9"}, CONTENT[:1000])
        return is_content(answer)

    hub.faults = [other_size]
    with pytest.raises(DataError, match="found 9 bytes, expected 7700 bytes"):
        read(hub_file(tmp_path))

    def other_commit(answer: Answer) -> bool:
        answer.give(302, {"X-Repo-Commit": "abc", "Location": "/stored/data.bin"})
        return True

    hub.faults = [
        failing(500, 0),
        lambda request: not is_content(request) and other_commit(request),
    ]
    with pytest.raises(DataError, match="found commit abc, ETag , expected commit c0ffee"):
        read(hub_file(tmp_path / "2"))


def test_a_server_without_range_requests_is_refused(hub: Hub, tmp_path: Path) -> None:
    def whole(answer: Answer) -> bool:
        if is_content(answer):
            answer.give(200, {}, CONTENT)
        return is_content(answer)

    hub.faults = [whole]
    with open_file(hub_file(tmp_path)) as file:
        assert file.read(BLOCK) == CONTENT[:BLOCK]
        with pytest.raises(DataError, match="does not support range requests"):
            file.read(1)


def test_secrets_are_not_printed(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    hub.faults = [failing(503, 1000)]
    with pytest.raises(DataError) as error:
        read(hub_file(tmp_path))
    assert "HTTP 503" in caplog.text
    messages = f"{error.value}" + "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("bsmeta")
    )
    assert TOKEN not in messages
    assert "s3cret" not in messages
    monkeypatch.setenv("HF_TOKEN", "hf_\x07bell")
    with pytest.raises(DataError) as error:
        read(hub_file(tmp_path))
    assert "bell" not in str(error.value)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"ratelimit": '"api";r=0;t=55'}, 55.0),
        ({"ratelimit": '"api";r=5;t=55'}, None),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_from_the_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert read_requested_wait(httpx2.Headers(headers)) == seconds


def test_requested_waits_are_kept_and_delays_grow(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    monkeypatch.setattr(store, "FIRST_DELAY_S", 1.0)
    monkeypatch.setattr(store, "MAX_DELAY_S", 4.0)
    hub.faults = [failing(429, 1, {"Retry-After": "30"}), failing(500, 4)]
    path = hub_file(tmp_path, retries=5)
    assert b"".join(stores.read_range(path, 0, 10, Clock())) == CONTENT[:10]
    assert waited[:6] == [5.0] * 6  # in parts, so that the wait counts as progress
    rests = [sum(waited[:7]), *waited[7:]]
    bounds = [(30, 31), (1, 2), (2, 4), (2, 4), (2, 4)]
    assert len(rests) == 5
    assert all(low <= one <= high for one, (low, high) in zip(rests, bounds, strict=True))


def test_closing_a_file_ends_reading_ahead(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [failing(500, 10**6, where=lambda request: "-1999" in request.range)]
    file = RemoteFile(hub_file(tmp_path, retries=10**6))
    assert file.read(20) + file.read(20) == CONTENT[:40]
    thread = file._prefetch._thread
    file.close()
    assert not thread.is_alive()


def test_offline_only_cached_blocks_can_be_read(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub_file(tmp_path)
    with open_file(path) as file:
        file.read(2 * BLOCK)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with open_file(path) as file:
        assert file.read(2 * BLOCK) == CONTENT[: 2 * BLOCK]
        file.seek(7000)
        with pytest.raises(DataError, match=r"data.bin, bytes 7000 to 7700: HF_HUB_OFFLINE is set"):
            file.read(1)
