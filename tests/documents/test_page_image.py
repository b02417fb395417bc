"""Pictures of pages, and the boxes of quotations on them."""

import io
from pathlib import Path

import numpy as np
import pytest
from fpdf import FPDF
from PIL import Image

from pippin.apps.documents.page_image import locate, render_page
from pippin.apps.documents.pages import Box
from pippin.runtime.errors import InputError
from support.documents import small_pdf


def _picture(path: Path, number: int, width: int) -> np.ndarray:
    image = Image.open(io.BytesIO(render_page(path, number, width)))
    image.load()
    assert image.format == "PNG"
    return np.asarray(image.convert("L"))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    pdf = FPDF(format=(200, 100))
    pdf.set_font("Helvetica", size=12)
    pdf.add_page()
    pdf.set_fill_color(255, 0, 0)
    pdf.rect(0, 0, 50, 50, style="F")
    pdf.text(100, 60, "Seven ferries")
    path = tmp_path / "book.pdf"
    pdf.output(str(path))
    return path


@pytest.mark.parametrize("width", [1, 333, 800])
def test_a_picture_has_the_width_and_the_shape_of_the_page(book: Path, width: int) -> None:
    height, across = _picture(book, 1, width).shape
    assert abs(across - width) <= 1
    assert abs(height - width / 2) <= 1


def test_a_picture_shows_the_page_in_its_colours(book: Path) -> None:
    image = Image.open(io.BytesIO(render_page(book, 1, 400)))
    assert image.getpixel((50, 50)) == (255, 0, 0)
    assert image.getpixel((300, 20)) == (255, 255, 255)


def test_a_box_is_where_the_ink_is(book: Path) -> None:
    picture = _picture(book, 1, 1000)
    (box,) = locate(book, 1, "seven FERRIES!")
    ink = picture < 60
    rows, columns = np.nonzero(ink)
    height, width = picture.shape
    assert abs(box.left * width - columns.min()) < 8
    assert abs(box.right * width - columns.max()) < 8
    assert box.top * height <= rows.min() + 1
    assert box.bottom * height >= rows.max() - 1
    assert (box.bottom - box.top) * height < 3 * (rows.max() - rows.min())


def _near(box: Box, left: float, top: float, right: float, bottom: float) -> bool:
    """Against points of a page of 400 × 600; heights depend on the font."""
    across = abs(box.left * 400 - left) < 3 and abs(box.right * 400 - right) < 3
    return across and abs(box.top * 600 - top) < 8 and abs(box.bottom * 600 - bottom) < 8


def test_a_quotation_over_lines_with_hyphens_and_ligatures(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(
        small_pdf([[(40, 50, "The ﬁrst exam-"), (40, 62, "ple ends. More"), (40, 74, "text")]])
    )
    first, second = locate(path, 1, "first example  ends.")
    assert _near(first, 60, 50, 110, 60)
    assert _near(second, 40, 62, 80, 72)
    assert locate(path, 1, "no such words") == []
    assert locate(path, 1, "…!") == []


def test_a_quotation_that_goes_on_in_the_next_column(tmp_path: Path) -> None:
    page = []
    for row in range(8):
        page.append((40, 80 + 12 * row, f"left line {row} of the old harbour"))
        page.append((220, 80 + 12 * row, f"right line {row} of the new pier"))
    path = tmp_path / "a.pdf"
    path.write_bytes(small_pdf([page]))
    boxes = locate(path, 1, "7 of the old harbour right line 0")
    assert len(boxes) == 2
    assert boxes[0].left < 0.4 < boxes[1].left
    assert boxes[0].top > boxes[1].top


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_boxes_on_a_turned_page_are_those_of_its_picture(tmp_path: Path, rotate: int) -> None:
    upright, turned = tmp_path / "0.pdf", tmp_path / "turned.pdf"
    page = [(40, 50, "The first words"), (40, 300, "and the last")]
    upright.write_bytes(small_pdf([page]))
    turned.write_bytes(small_pdf([page], rotate))
    (box,) = locate(upright, 1, "first words")
    (found,) = locate(turned, 1, "first words")
    corners = [(box.left, box.top), (box.right, box.bottom)]
    for _ in range(rotate // 90):  # clockwise
        corners = [(1 - y, x) for x, y in corners]
    (x0, y0), (x1, y1) = corners
    expected = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
    assert (found.left, found.top, found.right, found.bottom) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("number", "width", "part"),
    [
        (0, 100, "has pages 1 to 1, there is no page 0"),
        (2, 100, "there is no page 2"),
        (1, 0, "the width is 0 pixels"),
        (1, 9000, "give 1 to 8,000"),
    ],
)
def test_what_cannot_be_shown(book: Path, number: int, width: int, part: str) -> None:
    with pytest.raises(InputError, match=part):
        render_page(book, number, width)


def test_a_very_high_page_is_rendered_smaller(tmp_path: Path) -> None:
    pdf = FPDF(unit="pt", format=(10, 14000))
    pdf.add_page()
    pdf.output(str(tmp_path / "a.pdf"))
    height, width = _picture(tmp_path / "a.pdf", 1, 2000).shape
    assert height * width <= 1.1 * 2**25
