"""Peak performance and memory of GPUs, for the MFU and for estimates on another machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        peak_flops: Peak of dense bf16 in FLOP/s, from the vendor's data sheet (without sparsity).
        memory: Bytes that a process can address: `total_memory` of torch's device properties, from
            logs of such machines. It is less than the data sheet states, because error correction
            and the driver take a part.
    """

    peak_flops: float
    memory: float


# A device is the first of these cards all of whose parts ("H100" and "PCIe") are words of its name.
# Parts of words do not count: A100 contains "A10", and so does A10G, which is slower.
CARDS = {
    "GB200": Card(2500e12, 184.0 * GIB),  # GB200 NVL72, per GPU
    "B200": Card(2250e12, 178.0 * GIB),  # HGX B200, per GPU
    "GH200": Card(989e12, 94.5 * GIB),
    "H200-NVL": Card(835e12, 139.7 * GIB),
    "H200": Card(989e12, 139.7 * GIB),
    "H100-PCIe": Card(756e12, 79.1 * GIB),
    "H100-NVL": Card(835e12, 93.0 * GIB),
    "H100": Card(989e12, 79.1 * GIB),
    "H20": Card(148e12, 95.0 * GIB),
    "A100-40GB": Card(312e12, 39.4 * GIB),
    "A100": Card(312e12, 79.1 * GIB),
    "A10": Card(125e12, 22.0 * GIB),
    "L40S": Card(362e12, 44.4 * GIB),
    "L40": Card(181e12, 44.4 * GIB),
    "RTX-4090": Card(165e12, 23.5 * GIB),
    "RTX-3090": Card(71e12, 23.5 * GIB),
}


def find_card(device_name: str) -> str | None:
    """Finds the card of a device.

    Args:
        device_name: The name of the device in torch.

    Returns:
        A key of `CARDS`; None if the card is unknown.
    """
    for name in CARDS:
        if all(re.search(rf"\b{part}\b", device_name) for part in name.split("-")):
            return name
    return None
