"""Every family and variant: MLX against transformers, the float64 interpreter against both."""

import pytest

from pippin.runtime.errors import ContextError
from support.families import LEAST_MARGIN, ROWS, TOLERANCE, WAYS, error, worst_rollback


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def subject(request, subject_of):
    return subject_of(request.param)


def test_mlx_transformers_and_float64_agree(subject):
    """All three are reported: two that agree tell which one is wrong."""
    wrong = []
    for length in subject.row.lengths:
        exact = error(subject.exact(length), subject.theirs(length))
        for way in WAYS:
            ours = subject.run(subject.mlx, length, way)
            errors = {
                "MLX–transformers": subject.error(ours, subject.theirs),
                "MLX–float64": subject.error(ours, subject.exact),
                "float64–transformers": exact,
            }
            if max(errors.values()) > TOLERANCE:
                said = ", ".join(f"{pair} {value:.1e}" for pair, value in errors.items())
                wrong.append(f"{length} tokens in {way}: {said}")
    assert not wrong, "\n".join(wrong)


def test_no_choice_of_experts_is_a_coin_toss(subject):
    """Otherwise two correct implementations may differ: give the row another seed."""
    margins = [subject.tiny.routing_margin(subject.ids(n)) for n in subject.row.lengths]
    assert min(margins) >= LEAST_MARGIN


def test_after_rollback_is_never_having_gone_ahead(subject):
    worst, length = worst_rollback(subject, subject.mlx)
    assert worst <= TOLERANCE, f"after a rollback to {length} tokens"


def test_a_token_beyond_the_context_is_refused(subject):
    context = subject.mlx.info.context
    with pytest.raises(ContextError, match=str(context)):
        subject.mlx.open().verify([1] * (context + 1))
