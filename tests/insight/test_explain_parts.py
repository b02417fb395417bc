"""The tables of `pippin explain`: each figure of a report stands in its place."""

import re

import numpy as np
import pytest

from pippin.apps.bench import Figure
from pippin.apps.insight.block import block_numbers
from pippin.apps.insight.html import Table, render_page, write_page
from pippin.apps.insight.position_curves import position_curves
from pippin.apps.insight.recurrence.report import (
    ONE_BY_ONE,
    PARALLEL,
    Network,
    Reach,
    RecurrenceReport,
    Timing,
)
from pippin.commands.explain_print import print_part
from pippin.commands.explain_tables import (
    block_part,
    percent,
    positions_part,
    recurrence_part,
    visible,
)
from pippin.mlx_model.families import read_family
from pippin.runtime.errors import InputError
from support.tiny import LLAMA


def _figures(*medians: float) -> tuple[Figure, ...]:
    return tuple(Figure(m, 0.9 * m, 1.1 * m, 3) for m in medians)


@pytest.fixture
def recurrence() -> RecurrenceReport:
    lengths, distances = (16, 1024), (10, 500)
    timings = [
        Timing("LSTM", PARALLEL, lengths, _figures(0.0005, 0.016), 1.01),
        Timing("decoder", ONE_BY_ONE, lengths, _figures(0.002, 1.234), 1.27),
    ]
    reaches = [
        Reach("LSTM", "bias 0", distances, _figures(0.038, 2.1e-95)),
        Reach("decoder", "", distances, _figures(1.9, 0.38)),
    ]
    return RecurrenceReport(
        networks=(Network("LSTM", 910_208, "2 layers"), Network("decoder", 912_512, "4 layers")),
        differences={"LSTM": 7e-7, "decoder": 6e-7},
        timings=tuple(timings),
        fit_from=256,
        thread_gains={"decoder": Figure(1.81, 1.7, 1.9, 3)},
        gain_length=1024,
        reaches=tuple(reaches),
        rounds=3,
        seeds=5,
        onnxruntime="1.32.0",
        threads=2,
        cpu="a CPU",
    )


def _cells(table: Table) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for row in table.rows}


def test_recurrence(recurrence: RecurrenceReport, capsys: pytest.CaptureFixture) -> None:
    part = recurrence_part(recurrence)
    networks, times, gradients = map(_cells, part.tables)
    assert networks["LSTM"] == ["910,208", "2 layers"]
    assert times["16"] == ["0.500 (0.450–0.550)", "2.00 (1.80–2.20)"]
    assert times["1,024"] == ["16.0 (14.4–17.6)", "1,234 (1,111–1,357)"]
    assert times["growth"] == ["1.01", "1.27"]
    assert gradients["LSTM, bias 0"][:2] == ["0.038", "2.1e-95"]
    assert gradients["decoder"][2] == f"{(0.38 / 1.9) ** (1 / 490):.3f}"
    assert set(recurrence.notes) <= set(part.notes)
    assert "decoder 1.81 ×" in part.notes[1]
    print_part(part)
    shown = capsys.readouterr().out
    assert "LSTM 7.0e-07; decoder 6.0e-07" in " ".join(shown.split())
    assert len(part.charts) == 2


def test_block() -> None:
    config = read_family(
        {"model_type": "llama", **LLAMA, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    ).config
    numbers = block_numbers(config, "tiny", 100)
    parameters, work, memory = map(_cells, block_part(numbers).tables)
    for name, count in numbers.parameters.items():
        assert parameters[name][0] == f"{count:,}"
    assert work["all"] == [f"{numbers.flops.total:,}", "100.0 %"]
    parts = [name for name in work if name not in ("all", "attention, together")]
    assert sum(int(work[name][0].replace(",", "")) for name in parts) == numbers.flops.total
    assert memory["scores H×S×S, one layer, unfused"][1] == "234.4 KiB"  # 6 × 100 × 100 × 4 B


def test_positions() -> None:
    curves = position_curves(128, 1024)
    part = positions_part(curves)
    names = [name for name, _ in part.tables[0].headers]
    assert names == ["scheme", "paper", "1", "8", "64", "128", "512", "1,024", "unseen pairs"]
    for row, curve in zip(part.tables[0].rows, curves.curves, strict=True):
        found = [float(cell) for cell in row[2:8]]
        wanted = [curve.values[d] for d in (1, 8, 64, 128, 512, 1024)]
        assert found == pytest.approx(wanted, abs=6e-4)


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" a", "·a"), ("\n\n", "⏎⏎"), ("", "∅"), ("\x1b[31m", "\\x1b[31m"), ("<|x|>", "<|x|>")],
)
def test_tokens_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_shares_are_never_rounded_to_nothing() -> None:
    assert [percent(share) for share in (0, 1e-9, 0.001234, 0.5, 1)] == [
        *("0.00 %", "<0.01 %", "0.12 %", "50.0 %", "100.0 %"),
    ]


def test_data_cannot_end_its_element() -> None:
    text = "</script><script>alert(1)</script><!--{script}{title}"
    page = render_page("<i>&", {"tokens": [text]})
    assert page.count("</script>") == 2
    assert "<!--" not in page.replace("<!doctype", "")
    assert "<title>&lt;i&gt;&amp;</title>" in page
    assert re.search(r'"tokens":\["\\u003c/script>', page)
    assert "{script}{title}" in page  # a text that looks like a place of the template stays
    with pytest.raises(ValueError, match="JSON"):
        render_page("x", {"value": float(np.nan)})


def test_a_page_is_written_whole(tmp_path) -> None:
    file = tmp_path / "page.html"
    assert write_page(file, "x", {}, []) == file.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="cannot be written"):
        write_page(tmp_path / "none" / "page.html", "x", {}, [])
