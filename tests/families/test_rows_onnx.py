"""Every family and variant: the exported graph in each dialect against MLX, or a refusal."""

import re

import pytest

from pippin.runtime.errors import InputError
from support.families import ROWS, TOLERANCE, WAYS, error, greedy, worst_rollback

GREEDY = 32  # tokens
WORKING = [(row, dialect) for row in ROWS for dialect in row.dialects]
REFUSED = [(row, dialect, words) for row in ROWS for dialect, words in row.refusals.items()]


def name(params) -> str:
    return f"{params[0].name}-{params[1]}"


@pytest.fixture(scope="module", params=WORKING, ids=name)
def exported(request, subject_of):
    """A subject and the engine of its graph."""
    row, dialect = request.param
    subject = subject_of(row)
    return subject, subject.onnx(dialect)


def test_onnx_equals_mlx(exported):
    subject, onnx = exported
    wrong = []
    for length in subject.row.lengths:
        for way in WAYS:
            found = subject.error(subject.run(onnx, length, way), subject.ours)
            if not found <= TOLERANCE:
                theirs = error(subject.ours(length), subject.theirs(length))
                wrong.append(
                    f"{length} tokens in {way}: {found:.1e}; MLX–transformers {theirs:.1e}"
                )
    assert not wrong, "\n".join(wrong)


def test_greedy_tokens_are_identical(exported):
    subject, onnx = exported
    room = subject.mlx.info.context - GREEDY
    prompt = subject.ids(max(length for length in (*subject.row.lengths, 9) if length <= room))
    assert greedy(onnx, prompt, GREEDY) == greedy(subject.mlx, prompt, GREEDY)


def test_after_rollback_is_never_having_gone_ahead(exported):
    subject, onnx = exported
    worst, length = worst_rollback(subject, onnx)
    assert worst <= TOLERANCE, f"after a rollback to {length} tokens"


@pytest.mark.parametrize("refused", REFUSED, ids=name)
def test_what_a_dialect_cannot_express_is_refused(refused, subject_of, tmp_path):
    row, dialect, words = refused
    subject = subject_of(row)
    with pytest.raises(InputError, match=re.escape(words)) as refusal:
        subject.export(dialect)
    assert "\n" not in str(refusal.value)
