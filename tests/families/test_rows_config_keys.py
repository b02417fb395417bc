"""Every family and variant: another value of any key of its config.json, one after the other.

Pippin refuses it or says what transformers says with the same weights: it ignores no key whose
meaning changes the output.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from support.families import LEAST_MARGIN, ROWS, TOLERANCE, Subject, error
from support.tiny import Tiny, config_class, reference_model

# What transformers does with a head of its own beside a tied table is tested in test_load.py.
LEFT_OUT = {"model_type", "architectures", "dtype", "transformers_version", "tie_word_embeddings"}
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def subject(request, subject_of):
    return subject_of(request.param)


def other_values(value: Any) -> list[Any]:
    """Values of the same type; a number for null."""
    if value is None:
        return [3]
    if isinstance(value, list):  # of numbers or names, one a layer or a pair
        first = other_values(value[0])[:1] if value else []
        return [[*first, *value[1:]]] if first else [value[::-1]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value // 2]
    if isinstance(value, float):
        return [value * 1.5 + 0.25]
    if value in ACTIVATIONS:
        return [name for name in ACTIVATIONS if name != value]
    return []


def changed_configs(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies of `config` with one value changed, at any depth, each with a word on it."""
    for path, value in leaves(config):
        for other in other_values(value):
            copied = copy.deepcopy(config)
            inner = copied
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = other
            yield f"{'.'.join(path)} = {other!r}", copied


def leaves(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif key not in LEFT_OUT:
            yield (*path, key), value


def changed_reference(subject: Subject, config: dict[str, Any], ids: list[int]) -> Tiny | None:
    """transformers with that config and the same weights; None where it cannot take `ids`."""
    kind = subject.row.kind
    try:
        read = config_class(kind).from_dict(copy.deepcopy(config))
        model = reference_model(kind, read)
        model.load_state_dict(subject.tiny.reference.state_dict())
        reference = Tiny(subject.tiny.path, model)
        reference.logits(ids)
    except Exception:  # of many kinds: impossible sizes, missing keys, other shapes
        return None
    return reference


def test_no_key_is_ignored(subject):
    checkpoint = subject.checkpoint
    wrong, compared = [], 0
    for change, config in changed_configs(checkpoint.config):
        try:
            decoder = load_decoder(replace(checkpoint, config=config), mx.float32)
        except InputError:
            continue
        engine = MlxEngine(decoder, "changed", "0")
        ids = subject.ids(min(max(subject.row.lengths), engine.info.context))
        reference = changed_reference(subject, config, ids)
        if reference is None:
            continue
        compared += 1
        found = error(np.array(engine.open().verify(ids)), reference.logits(ids))
        if not found <= TOLERANCE and reference.routing_margin(ids) >= LEAST_MARGIN:
            wrong.append(f"{change}: {found:.1e}")
    assert not wrong, "\n".join(wrong)
    assert compared
