"""What `/set` takes."""

import dataclasses

import pytest

from pippin.apps.chat import settings
from pippin.runtime.errors import InputError
from pippin.runtime.sampling import SamplingParams


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("top_k", "40", 40),
        ("seed", "7", 7),
        ("seed", "default", None),
        ("max_tokens", "100", 100),
        ("ignore_eos", "on", True),
        ("stop", "END\\n", ("END\n",)),
        ("think", "show", "show"),
    ],
)
def test_values(name: str, typed: str, value: object) -> None:
    assert settings.parse(name, typed) == value


@pytest.mark.parametrize(
    ("name", "typed", "part"),
    [
        ("temprature", "1", "no setting 'temprature'; did you mean temperature?"),
        ("xyzzy", "1", "/set lists them"),
        ("logit_bias", "1=2", "no setting 'logit_bias'"),
        ("temperature", "hot", "temperature is 'hot'; it must be a number"),
        ("top_k", "1.5", "it must be a whole number"),
        ("ignore_eos", "yes", "it must be on or off"),
        ("overflow", "wrap", "it must be ask or drop or stop"),
    ],
)
def test_refusals(name: str, typed: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        settings.parse(name, typed)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_field_of_one_value_can_be_set() -> None:
    defaults = SamplingParams()
    for field in dataclasses.fields(SamplingParams):
        if field.name in ("logit_bias", "dry_sequence_breakers"):
            continue
        typed = settings.spell(getattr(defaults, field.name))
        if typed != "none":
            assert settings.parse(field.name, typed) == getattr(defaults, field.name)
