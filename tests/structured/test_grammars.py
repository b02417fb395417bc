"""What cannot be enforced is refused by name, before any model is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.apps.structured import choice, json_schema, read_schema, regex
from pippin.runtime.errors import InputError

REFUSED: dict[str, tuple[Any, str]] = {
    "unknown type": ({"type": "strin"}, "strin"),
    "misspelled": ({"properties": {"a": {"maxLenght": 3}}}, r"'maxLenght' at \$.properties.a"),
    "misspelled in a list": ({"anyOf": [{}, {"maxmum": 3}]}, r"'maxmum' at \$.anyOf\[1\]"),
    "of OpenAPI": ({"type": "string", "nullable": True}, "nullable"),
    "settings of the library": ({"x-guidance": {"lenient": True}}, "x-guidance"),
    "unique items": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "not": ({"not": {"type": "string"}}, '"not"'),
    "if": ({"if": {}, "then": {}}, '"if", "then"'),
    "contains": ({"contains": {}}, "contains"),
    "dangling reference": ({"$ref": "#/$defs/x"}, "/\\$defs/x"),
    "reference to what is not checked": ({"x-a": {"b": {}}, "$ref": "#/x-a/b"}, "#/x-a/b"),
    "reference to elsewhere": ({"$ref": "https://example.com/s"}, "example.com"),
    "unknown format": ({"type": "string", "format": "zork"}, "zork"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)"}, "look-around"),
    "empty range": ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum .5."),
    "empty length": ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength .5."),
    "no value": ({"enum": []}, "empty"),
    "overlapping oneOf": ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    "wrong kind": ({"required": "a"}, "required"),
    "not an object": ([1], "is an object"),
    "not JSON": ({"const": {1, 2}}, "not JSON"),
    "not a number": ({"const": float("nan")}, "not JSON"),
}


def refusal(make: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        make(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.parametrize(("schema", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_a_schema_that_cannot_be_enforced(schema: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        json_schema(schema)
    refusal(json_schema, schema)


def test_a_property_may_be_called_like_no_keyword() -> None:
    json_schema({"properties": {"nullable": {}, "x": {"const": {"nullable": 1}}}, "x-order": 1})


def test_a_schema_nested_without_end() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    assert "nested too deeply" in refusal(json_schema, schema)
    assert "nested too deeply" in refusal(read_schema, '{"items":' * 100_000)


@pytest.mark.parametrize("pattern", ["", "(", "(?=a)b", r"(a)\1", r"\bword", "a^b", 3])
def test_a_regex_that_cannot_be_enforced(pattern: Any) -> None:
    assert "regex" in refusal(regex, pattern)


@pytest.mark.parametrize("options", [[], [""], "yes", [1], ["\ud800"]])
def test_choices_that_are_none(options: Any) -> None:
    assert "choice" in refusal(choice, options)


@given(pattern=st.text(st.characters(), max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_regex_or_refused(pattern: str) -> None:
    try:
        regex(pattern)
    except InputError:
        refusal(regex, pattern)


def test_a_schema_is_read_from_a_file_or_as_such(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "integer"}))
    assert read_schema(str(file)) == read_schema('{"type": "integer"}')


@pytest.mark.parametrize(
    ("content", "named"), [(b"{", "not valid JSON"), (b"\xff", "not UTF-8"), (b"3", "an object")]
)
def test_a_file_that_holds_no_schema(tmp_path: Path, content: bytes, named: str) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(content)
    assert named in refusal(read_schema, str(file))
    assert "cannot be read" in refusal(read_schema, str(tmp_path / "absent"))
    assert "cannot be read" in refusal(read_schema, "a\0b")
