"""The names of GPUs, as torch reports them."""

from __future__ import annotations

import pytest

from bsmeta.config.cards import CARDS, find_card


@pytest.mark.parametrize(
    ("device_name", "card"),
    [
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", None),
        ("NVIDIA L40", "L40"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("Tesla V100-SXM2-32GB", None),
    ],
)
def test_a_card_by_the_name_of_the_device(device_name: str, card: str | None) -> None:
    assert find_card(device_name) == card


def test_usable_memory_is_below_the_memory_on_the_data_sheet() -> None:
    sheets = {
        "GB200": 186,
        "B200": 180,
        "GH200": 96,
        "H200-NVL": 141,
        "H200": 141,
        "H100-PCIe": 80,
        "H100-NVL": 94,
        "H100": 80,
        "H20": 96,
        "A10": 24,
        "L40": 48,
        "A100-40GB": 40,
        "A100": 80,
        "L40S": 48,
        "RTX-4090": 24,
        "RTX-3090": 24,
    }
    assert sheets.keys() == CARDS.keys()
    for name, gigabytes in sheets.items():
        assert 0.9 * gigabytes < CARDS[name].memory / 2**30 < gigabytes
