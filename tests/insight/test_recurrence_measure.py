"""What `--versus-rnn` reports: whole, consistent and JSON."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.apps.insight.recurrence.measure import FIT_FROM, growth, measure_recurrence
from pippin.apps.insight.recurrence.report import ONE_BY_ONE, PARALLEL
from pippin.runtime.errors import InputError

LENGTHS, DISTANCES = (4, 16, 64), (5, 40)


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def report(said):
    return measure_recurrence(
        said.append, rounds=3, seeds=2, threads=2, lengths=LENGTHS, distances=DISTANCES
    )


def test_the_report_has_both_networks_in_both_ways(report):
    assert [network.name for network in report.networks] == ["LSTM", "decoder"]
    timings = {(timing.network, timing.reading): timing for timing in report.timings}
    for network in report.networks:
        for reading in (PARALLEL, ONE_BY_ONE):
            timing = timings[network.name, reading]
            assert timing.lengths == LENGTHS
            for figure in timing.seconds:
                assert 0 < figure.low <= figure.median <= figure.high
                assert figure.rounds == 3
    for name in ("LSTM", "decoder"):
        seconds = [figure.median for figure in timings[name, ONE_BY_ONE].seconds]
        assert seconds == sorted(seconds)
        assert report.thread_gains[name].median > 0


def test_what_is_timed_computes_what_mlx_computes(report):
    assert set(report.differences) == {"LSTM", "decoder"}
    assert max(report.differences.values()) <= 1e-5


def test_the_gradient_of_a_gate_half_open_vanishes_and_attentions_does_not(report):
    shares = {reach.name: [f.median for f in reach.shares] for reach in report.reaches}
    assert len(shares) == 4
    assert shares["LSTM, forget gate bias 0"][1] < 1e-5
    assert shares["LSTM, forget gate bias 0"][1] < shares["LSTM, forget gate bias 1"][1]
    assert shares["LSTM, forget gate chrono"][1] > 0.1
    assert shares["decoder"][1] > 0.1
    for reach in report.reaches:
        first, last = (figure.median for figure in reach.shares)
        assert first * reach.kept_per_token**35 == pytest.approx(last)


def test_the_report_is_json(report):
    text = json.dumps(dataclasses.asdict(report), allow_nan=False)
    back = json.loads(text)
    assert back["timings"][0]["seconds"][2]["median"] == report.timings[0].seconds[2].median
    assert back["notes"] == list(report.notes)


def test_charts_show_what_was_measured(report):
    times, gradients = report.charts()
    assert [series.name for series in times.series] == [
        f"{timing.network}, {timing.reading}" for timing in report.timings
    ]
    for series, timing in zip(times.series, report.timings, strict=True):
        assert series.x == LENGTHS
        assert series.y == tuple(1e3 * figure.median for figure in timing.seconds)
    assert [series.name for series in gradients.series] == [r.name for r in report.reaches]
    assert all(series.x == DISTANCES and min(series.y) > 0 for series in gradients.series)


def test_a_gradient_of_zero_is_left_out_of_a_logarithmic_chart(report):
    reach = report.reaches[0]
    gone = dataclasses.replace(reach.shares[1], median=0.0)
    vanished = dataclasses.replace(reach, shares=(reach.shares[0], gone))
    assert vanished.kept_per_token == 0
    _, chart = dataclasses.replace(report, reaches=(vanished,)).charts()
    assert chart.series[0].x == DISTANCES[:1]


def test_progress_says_what_is_done(report, said):
    assert "timing, round 3 of 3" in said
    assert said[-1] == "gradient of the decoder: 2 of 2"


def test_no_round_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        measure_recurrence(rounds=0)


@given(st.floats(0.1, 3.0), st.floats(1e-6, 1e3))
def test_growth_is_the_exponent_of_a_power_law(exponent, factor):
    lengths = (1, 8, FIT_FROM, 2 * FIT_FROM, 16 * FIT_FROM)
    # Below FIT_FROM a fixed cost hides the law; it must not count.
    seconds = [factor * max(n, FIT_FROM) ** exponent for n in lengths]
    assert growth(lengths, seconds) == pytest.approx(exponent, abs=1e-9)
