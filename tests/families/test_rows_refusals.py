"""Every family and variant: what its config.json or its weights have too much or too little of."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.checkpoint import Checkpoint
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from support.families import ROWS

INVENTED = {
    "attn_logit_softcapping_2": 30.0,
    "use_magic_norm": True,
    "norm_after_attention_too": False,
    "residual_twist": 0.5,
    "rotary_flavour": "swirl",
    "skipped_layers": [],
    "expert_hint": {"depth": 2},
}
LABELS = ("id2label", "label2id")  # names of classes, for classifiers
IMAGES = re.compile(r"vision|multi_modal")  # in names of what the decoder leaves out unread
WORDS = ("attn", "rope", "mlp", "norm", "use", "moe", "layer", "logit")


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def subject(request, subject_of):
    return subject_of(request.param)


@dataclass(frozen=True)
class Altered(Checkpoint):
    """A checkpoint with other weights than those on disk."""

    weights: dict[str, mx.array] = field(default_factory=dict)

    def load_weights(self) -> dict[str, mx.array]:
        return dict(self.weights)


def refusal(checkpoint: Checkpoint) -> str:
    """The one line by which `checkpoint` is refused."""
    with pytest.raises(InputError) as error:
        load_decoder(checkpoint, mx.float32)
    message = str(error.value)
    assert "\n" not in message
    return message


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """`value`, a config, and every dict in it that may say something about the output."""
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in LABELS and not IMAGES.search(key):
                yield from dicts(inner)


def with_key(config: dict[str, Any], place: int, key: str, value: Any) -> dict[str, Any]:
    """A copy of `config` with `key` in the dict number `place` of `dicts`."""
    config = copy.deepcopy(config)
    list(dicts(config))[place][key] = value
    return config


@pytest.mark.parametrize("key", INVENTED)
def test_invented_keys_are_refused_by_name(subject, key):
    config = subject.checkpoint.config
    for place in range(len(list(dicts(config)))):
        changed = with_key(config, place, key, INVENTED[key])
        assert key in refusal(replace(subject.checkpoint, config=changed))


@settings(max_examples=20, deadline=None)
@given(
    key=st.builds("{}_magic_{}".format, st.sampled_from(WORDS), st.text("abcxyz_019", max_size=9)),
    value=st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just([]),
    data=st.data(),
)
def test_any_invented_key_is_refused_by_name(subject, key, value, data):
    config = subject.checkpoint.config
    place = data.draw(st.integers(0, len(list(dicts(config))) - 1))
    changed = with_key(config, place, key, value)
    assert key in refusal(replace(subject.checkpoint, config=changed))


def kinds(weights: dict[str, mx.array]) -> list[str]:
    """One name of each kind: numbers of layers and experts aside, the last one."""
    names = [name for name in sorted(weights) if not IMAGES.search(name)]
    return list({re.sub(r"\d+", "N", name): name for name in names}.values())


def altered(subject, weights: dict[str, mx.array]) -> Checkpoint:
    return Altered(**vars(subject.checkpoint), weights=weights)


def names(message: str, tensor: str) -> bool:
    """Whether `message` names `tensor`, or one of the same layer into which it is translated."""
    layer = re.search(r"\.\d+\.", tensor)
    return tensor in message or re.search(
        re.escape(layer[0]) if layer else r"[\w.]+\.(weight|bias)", message
    )


def test_the_weights_as_they_are_load(subject):
    load_decoder(altered(subject, subject.checkpoint.load_weights()), mx.float32)


def test_a_missing_tensor_is_named(subject):
    weights = subject.checkpoint.load_weights()
    for name in kinds(weights):
        rest = {other: array for other, array in weights.items() if other != name}
        message = refusal(altered(subject, rest))
        assert names(message, name), f"without {name}: {message}"


def test_an_additional_tensor_is_named(subject):
    weights = subject.checkpoint.load_weights()
    inside = next(name for name in sorted(weights) if re.search(r"\.\d+\.", name))
    start = re.match(r".*?\.\d+\.", inside)[0]
    for name in ("magic.weight", f"{start}magic.weight", f"{start}magic.bias"):
        message = refusal(altered(subject, {**weights, name: mx.ones((4, 4))}))
        assert "magic" in message, message


@pytest.mark.parametrize("axis", [0, -1], ids=["first-axis", "last-axis"])
def test_a_wrongly_shaped_tensor_is_named(subject, axis):
    weights = subject.checkpoint.load_weights()
    for name in kinds(weights):
        longer = mx.concatenate(
            [weights[name], weights[name][..., :1] if axis else weights[name][:1]], axis=axis
        )
        message = refusal(altered(subject, {**weights, name: longer}))
        assert names(message, name), f"{name} as {longer.shape}: {message}"
