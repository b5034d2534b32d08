"""`v100:2x4` is two nodes of 4 GPUs, wherever `v100=8x4` is read."""

import pytest

from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError


def test_nodes_times_gpus() -> None:
    assert parse_cluster("v100:2x4,k80:1x8").nodes == parse_cluster("v100=8x4,k80=8x8").nodes


@pytest.mark.parametrize("text", ["v100:2x4", "k80:3x4,v100:1x8,v100:2x4"])
def test_what_is_shown_can_be_read_again(text: str) -> None:
    assert parse_cluster(text).nodes_text() == text


@pytest.mark.parametrize(
    "text", ["v100:2", "v100:0x4", "v100:2x0", "v100:2x4,v100=4", "v100=4,v100:2x4", "v100:9999999x99"]
)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_cluster(text)
