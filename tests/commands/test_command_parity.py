"""`pippin parity`: the table, its exit code, and the real model."""

import json

import pytest

from support.command_line import one_line, run_pippin


def test_rows_and_exit_code_agree(model):
    run = run_pippin("parity", model, "--tokens", "64", "--json")
    rows = json.loads(run.out)
    assert run.code == (0 if all(row["ok"] for row in rows) else 1)
    # Random weights have no quality to keep, so what int8 activations cost is not judged here.
    exact = [row for row in rows if "parity graph" in row["pair"] or "fp32" in row["pair"]]
    assert len(exact) == 8
    assert all(row["ok"] for row in exact)


def test_the_table_and_the_closing_line(model):
    run = run_pippin("parity", model, "--tokens", "64")
    lines = run.out.splitlines()
    assert lines[0].split() == ["PAIR", "MEASURE", "VALUE", "LIMIT"]
    assert len(lines) == 21
    held = sum(line.startswith("ok") for line in lines)
    assert run.err.splitlines()[-1] == f"parity of {model} on 64 tokens: {held} of 20 rows hold"


def test_a_text_that_cannot_be_read_is_refused(model, tmp_path):
    (tmp_path / "latin1.txt").write_bytes("naïve".encode("latin-1"))
    for name in ("latin1.txt", "missing.txt"):
        run = run_pippin("parity", model, "--text", tmp_path / name)
        assert run.code == 2
        assert name in one_line(run)


def test_too_short_a_text_is_refused(model, tmp_path):
    (tmp_path / "short.txt").write_text("Hi")
    run = run_pippin("parity", model, "--text", tmp_path / "short.txt")
    assert run.code == 2
    assert "more than 32 tokens" in one_line(run)


@pytest.mark.slow
def test_smollm2_holds_every_row(smollm2):
    run = run_pippin("parity", smollm2, "--json", timeout=1200)
    rows = json.loads(run.out)
    assert len(rows) == 20
    assert [row for row in rows if not row["ok"]] == []
    assert run.code == 0
