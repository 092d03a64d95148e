"""Attention without kernels that are planned for each shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bsmeta.models.kernel_plans import disable_planned_attention, disable_planned_attention_for_good


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cuda.enable_cudnn_sdp(was_enabled)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_previous_setting_is_restored_after_an_error(was_enabled: bool) -> None:
    torch.backends.cuda.enable_cudnn_sdp(was_enabled)
    inside: list[bool] = []

    def fail() -> None:
        with disable_planned_attention():
            inside.append(torch.backends.cuda.cudnn_sdp_enabled())
            inside.append(torch.backends.cuda.flash_sdp_enabled())
            inside.append(torch.backends.cuda.mem_efficient_sdp_enabled())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [False, True, True]
    assert torch.backends.cuda.cudnn_sdp_enabled() is was_enabled


def test_a_process_can_disable_planned_attention_permanently() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    disable_planned_attention_for_good()
    with disable_planned_attention():
        pass
    assert not torch.backends.cuda.cudnn_sdp_enabled()
