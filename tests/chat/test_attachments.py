"""Files that go along with a message."""

from pathlib import Path

import pytest

from pippin.apps.chat.attachments import MAX_BYTES, read_attachment
from pippin.apps.chat.messages import for_template, user_message
from pippin.runtime.errors import InputError


def test_the_text_reaches_the_template_and_stays_apart(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes("\ufeffGröße\r\n2\r\n".encode())
    file = read_attachment(str(tmp_path / "notes.txt"))
    assert file == {"name": "notes.txt", "text": "Größe\n2"}
    message = user_message("What?", [file])
    assert message["content"] == "What?"
    sent = for_template([message])
    assert sent == [
        {"role": "user", "content": '<file name="notes.txt">\nGröße\n2\n</file>\n\nWhat?'}
    ]


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("a.pdf", b"%PDF-1.7\n", "a PDF; only text files can be attached"),
        ("a.png", b"\x89PNG\r\n", "a picture"),
        ("a.txt", b"caf\xe9", "no UTF-8 text: byte 0xe9 at offset 3"),
        ("a.bin", b"a\0b", "NUL character"),
        ("empty", b" \n", "is empty"),
        ("large", b"x" * (MAX_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_text(tmp_path: Path, name: str, data: bytes, part: str) -> None:
    (tmp_path / name).write_bytes(data)
    _refused(tmp_path / name, part)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    _refused(tmp_path, "is a directory")
    _refused(tmp_path / "note.txt", f"did you mean {tmp_path / 'notes.txt'}?")
    _refused(tmp_path / "no" / "x", "there is no directory")


def _refused(path: Path, part: str) -> None:
    with pytest.raises(InputError) as caught:
        read_attachment(str(path))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
