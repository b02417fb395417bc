"""Buckets of distances against the code of T5 and MPNet."""

import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from pippin.mlx_model.relative_bias import RelativeBias


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both", "backward"])
@pytest.mark.parametrize(
    ("buckets", "distance"), [(32, 128), (8, 20), (4, 3), (32, 1000), (33, 129), (320, 512)]
)
def test_buckets_are_t5s(buckets, distance, bidirectional):
    ours = RelativeBias(buckets, distance, bidirectional).distance_buckets()
    distances = torch.arange(-2 * distance, 2 * distance + 1)
    wanted = T5Attention._relative_position_bucket(distances, bidirectional, buckets, distance)
    found = ours[distances.clamp(-distance, distance).numpy() + distance]
    assert found.tolist() == wanted.tolist()


def test_buckets_are_mpnets():
    ours = RelativeBias(32, 128, bidirectional=True).distance_buckets()
    wanted = MPNetEncoder.relative_position_bucket(torch.arange(-128, 129))
    assert ours.tolist() == wanted.tolist()
