"""Whether a launch fits a device, and what to change if it does not."""

from __future__ import annotations

from bsmeta.training.memory.device_fit import Device, Need, describe_fit


def test_the_number_of_rows_that_fit_is_computed() -> None:
    need = Need(rows=8, size=80.0, per_row=5.0)
    usable = (39.9, 44.9, 45.0, 79.9, 80.0, 84.9, 85.0)
    assert [need.max_rows(size) for size in usable] == [0, 0, 1, 7, 8, 8, 9]


def test_a_launch_that_fits_has_no_advice() -> None:
    card = Device("H200", 139.7 * 2**30, 989e12, is_here=False)
    plain, recomputing = Need(8, 78 * 2**30, 6 * 2**30), Need(8, 28 * 2**30, 2**30)
    engines = {"zero2.yaml": 59 * 2.0**30, "fsdp2.yaml": 140 * 2.0**30}
    lines = describe_fit(card, plain, recomputing, engines, recomputes=False, rows_key="rows")
    assert lines == [
        "H200: 139.7 GiB, of which 2.0 GiB are left to CUDA and to fragmentation (assumed); this "
        "launch takes 78.0 GiB with 8 rows: it fits",
        "rows that fit: up to 17; with gradient_checkpointing=true up to 117",
        "other engines that fit with 8 rows, on the same number of devices: zero2.yaml (59.0 GiB)",
    ]


def test_a_task_without_recomputation_gets_no_such_advice() -> None:
    card = Device("RTX-4090", 23.5 * 2**30, 165e12, is_here=True)
    need = Need(8, 25 * 2**30, 6 * 2**30)
    lines = describe_fit(card, need, None, {}, recomputes=False, rows_key=None)
    assert lines == [
        "RTX-4090: 23.5 GiB, of which 2.0 GiB are left to CUDA and to fragmentation (assumed); "
        "this launch takes 25.0 GiB with 8 rows: it DOES NOT FIT",
        "rows of a micro-batch that fit: up to 7",
        "other engines that fit with 8 rows, on the same number of devices: none",
        "from cheap to expensive: fewer rows and more gradient_accumulation_steps (the same "
        "batch), another engine, more devices",
    ]
