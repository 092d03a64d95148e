"""Dates, addresses and numbers as they are rendered."""

from __future__ import annotations

import warnings

import pytest

from bsmeta.metadata.metadata_type import format_year_and_month, make_url_readable
from bsmeta.metadata.records import BadDocument
from tests.metadata.helpers import config, global_record, local, render


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2018-12-10T13:45:00.000Z", (2018, "December")),
        ("2023-02-19 00:00:00", (2023, "February")),
        ("2023-02-19", (2023, "February")),
        ("20230219", (2023, "February")),
        ("19 Feb 2023", (2023, "February")),
        ("March 2021", (2021, "March")),
        ("2019", (2019, None)),
        ("1556064000123", (2019, "April")),
        ("1512121312345", (2017, "December")),
        ("1556064000.123", (2019, "April")),
        ("1556064000", (2019, "April")),
        ("1555931454000.0", (2019, "April")),
    ],
)
def test_a_timestamp_in_any_notation_renders_as_year_and_month(
    value: str, expected: tuple[int, str | None]
) -> None:
    assert format_year_and_month(value) == expected


def test_the_name_of_a_time_zone_is_parsed_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert format_year_and_month("20 Nov 2019 10:00 QST") == (2019, "November")


@pytest.mark.parametrize("value", ["", "yesterday", "12:30", "March", "9" * 40, "2023-02-30"])
def test_a_value_that_is_not_a_timestamp_is_named(value: str) -> None:
    with pytest.raises(BadDocument) as caught:
        format_year_and_month(value)
    assert caught.value.reason == "not_a_timestamp"
    assert repr(value) in caught.value.detail


def test_a_year_without_a_month_is_rendered_as_a_year() -> None:
    assert (
        render(config(["timestamp"]), "", global_record("timestamp", 2019)).prefix
        == "Year: 2019 |||"
    )


URL = "https://User@News.BBC.co.uk:8080/sport/live%20now/a+b?page=2#top"


@pytest.mark.parametrize(
    ("granularity", "expected"),
    [
        ("full", "https://User@News.BBC.co.uk:8080/sport/live now/a b?page=2#top"),
        ("host", "news.bbc.co.uk"),
        ("registered_domain", "bbc.co.uk"),
        ("suffix", "co.uk"),
        ("path", "/sport/live now/a b"),
        ("hash", "6d60f9156e2c8572"),
    ],
)
def test_each_granularity_renders_its_part_of_the_url(granularity: str, expected: str) -> None:
    assert make_url_readable(URL, granularity) == expected
    settings = config(["url"], url_granularity=granularity)
    assert render(settings, "", global_record("url", URL)).prefix == f"url: {expected} |||"


@pytest.mark.parametrize(
    ("url", "host", "domain", "suffix", "path"),
    [
        ("example.com/a", "example.com", "example.com", "com", "/a"),
        ("//example.com", "example.com", "example.com", "com", None),
        ("localhost:80/x", "localhost", "localhost", None, "/x"),
        ("a.org/?next=http://b.com", "a.org", "a.org", "org", "/"),
        ("http://10.0.0.1/x", "10.0.0.1", "10.0.0.1", None, "/x"),
        ("http://münchen.de", "münchen.de", "münchen.de", "de", None),
        ("callto:Rick/x", None, None, None, "Rick/x"),
        (" https://En.example.org/a\n", "en.example.org", "example.org", "org", "/a"),
        ("http://[broken", None, None, None, None),
        ("", None, None, None, None),
    ],
)
def test_odd_addresses_are_split_into_parts(
    url: str, host: str | None, domain: str | None, suffix: str | None, path: str | None
) -> None:
    found = [
        make_url_readable(url, name) for name in ("host", "registered_domain", "suffix", "path")
    ]
    assert found == [host, domain, suffix, path]


def test_an_address_without_the_requested_part_is_omitted() -> None:
    rendered = render(
        config(["url"], url_granularity="host"), "Text.", global_record("url", "callto:Rick")
    )
    assert (rendered.prefix, rendered.lead, rendered.types) == ("", "", ())


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0.29", "2"), (0.7, "7"), ("0.99", "9"), (1, "10"), ("-0.05", "-1"), (" 0.5 ", "5")],
)
def test_a_number_is_scaled_before_it_is_rendered(value: object, expected: str) -> None:
    settings = config(["quality"], value_bucket_scale={"quality": 10.0})
    assert (
        render(settings, "", global_record("quality", value)).prefix == f"quality: {expected} |||"
    )


def test_scaling_is_exact_in_decimals() -> None:
    settings = config(["quality"], value_bucket_scale={"quality": 100.0})
    assert render(settings, "", global_record("quality", "0.29")).prefix == "quality: 29 |||"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", "<0.5"),
        ("0.5", "0.5-500"),
        (499.9, "0.5-500"),
        ("500", "500-2000000"),
        ("1e9", ">=2000000"),
    ],
)
def test_a_number_is_rendered_as_its_interval(value: object, expected: str) -> None:
    settings = config(["length"], value_bucket_bounds={"length": [0.5, 500, 2_000_000]})
    assert (
        render(settings, "", global_record("length", value)).prefix
        == f"Text Length: {expected} |||"
    )


def test_buckets_apply_to_local_records_too() -> None:
    settings = config(
        ["length"],
        value_bucket_bounds={"length": [10]},
        add_local_metadata_special_tokens_in_prefix=False,
    )
    rendered = render(settings, "One. Two", local("length", "3", 0, 4))
    assert rendered.body == "[length: <10]One.[/length: <10] Two"


@pytest.mark.parametrize("value", ["many", "", "nan", "inf"])
def test_a_value_that_is_not_a_number_is_named(value: str) -> None:
    settings = config(["quality"], value_bucket_scale={"quality": 10.0})
    with pytest.raises(BadDocument) as caught:
        render(settings, "", global_record("quality", value))
    assert caught.value.reason == "not_a_number"
