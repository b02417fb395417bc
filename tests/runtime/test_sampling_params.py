"""Sampling values out of range are refused by name, with their range."""

import math

import pytest

from pippin.runtime.errors import InputError
from pippin.runtime.sampling import Sampler, SamplingParams

REFUSED = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", None),
    ("top_p", 0),
    ("top_p", 1.01),
    ("min_p", -0.01),
    ("min_p", 1.5),
    ("typical_p", 0.0),
    ("xtc_probability", 2),
    ("xtc_threshold", -1),
    ("dry_multiplier", -0.5),
    ("dry_base", 0.99),
    ("dry_allowed_length", 0),
    ("dry_penalty_last_n", 0),
    ("repetition_penalty", 0),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("penalty_last_n", 0),
    ("seed", -1),
    ("seed", 2**64),
    ("max_tokens", 0),
    ("max_tokens", 3.0),
    ("prompt_lookup", -1),
    ("prompt_lookup", 65),
    ("prompt_lookup", True),
    ("stop", [""]),
    ("stop", [7]),
    ("dry_sequence_breakers", [""]),
    ("logit_bias", {3: math.inf}),
    ("logit_bias", {3: math.nan}),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_out_of_range(name, value):
    with pytest.raises(InputError, match=name) as caught:
        SamplingParams(**{name: value})
    assert "must be" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_edges_and_whole_numbers_for_fractions_are_accepted():
    SamplingParams(temperature=1, top_p=1, min_p=1, typical_p=1, xtc_probability=1, xtc_threshold=0)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, seed=2**64 - 1, max_tokens=1)
    SamplingParams(logit_bias={3: -math.inf}, dry_base=1, dry_sequence_breakers=[[1, 2], "\n"])


def test_one_stop_string_may_stand_alone():
    assert SamplingParams(stop="###").stop == ("###",)


def test_a_bias_outside_the_vocabulary():
    import numpy as np

    with pytest.raises(InputError, match="token 10; the vocabulary ends at 9"):
        Sampler(SamplingParams(logit_bias={10: 1.0}), 10, np, [])
