"""What a reply may be, checked before any model is loaded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from .keywords import check_keywords

# Between JSON's tokens at most one space: {"a": 1} and {"a":1}. Free white space lets a small
# model write it without end.
_OPTIONS = {"whitespace_pattern": " ?", "lenient": False, "coerce_one_of": False}


@dataclass(frozen=True)
class Grammar:
    """What a reply may be; `rule` is a right-hand side in llguidance's dialect of Lark."""

    kind: str  # "JSON schema", "JSON object", "regex" or "choice"
    rule: str

    def lark(self, before: str = "") -> str:
        """The whole grammar, the text `before` coming first."""
        start = f"{json.dumps(before)} body" if before else "body"
        return f"start: {start}\nbody: {self.rule}"


def json_schema(schema: Mapping[str, Any]) -> Grammar:
    """JSON that `schema` allows; its objects' properties in the order of the schema.

    Raises InputError for a schema that is none, and for a keyword that cannot be enforced.
    """
    if not isinstance(schema, Mapping):
        raise InputError(f"a JSON schema is an object; got {schema!r:.60}")
    try:
        check_keywords(schema)
        text = json.dumps({**schema, "x-guidance": _OPTIONS}, allow_nan=False)
    except RecursionError:
        raise InputError("the schema is nested too deeply; flatten it with $defs") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the schema is not JSON: {error}") from None
    return _checked(Grammar("JSON schema", f"%json {text}"))


def json_object() -> Grammar:
    """Any JSON object."""
    return Grammar("JSON object", json_schema({"type": "object"}).rule)


def regex(pattern: str) -> Grammar:
    """A text that `pattern` matches as a whole; the syntax is that of Rust's regex crate.

    Raises InputError for one that is empty or invalid, or looks ahead, behind or back.
    """
    from llguidance import regex_to_lark

    if not isinstance(pattern, str) or not pattern:
        raise InputError(f"a regex is a text of at least one character; got {pattern!r:.60}")
    _check_text(pattern, "regex")
    return _checked(Grammar("regex", f"/{regex_to_lark(pattern, 'd')}/"))  # \d is 0 to 9


def choice(options: Sequence[str]) -> Grammar:
    """One of several texts. Raises InputError when there is none, or an empty one."""
    if isinstance(options, str) or not all(isinstance(text, str) and text for text in options):
        raise InputError(f"choices are texts of at least one character; got {options!r:.60}")
    if not options:
        raise InputError("there is no choice; give at least one text")
    for text in options:
        _check_text(text, "choice")
    plain = ["".join(_as_regex(char) for char in text) for text in dict.fromkeys(options)]
    return _checked(Grammar("choice", f"/{'|'.join(plain)}/"))


def from_saved(fields: Any) -> Grammar:
    """The grammar that `dataclasses.asdict` made `fields` of. Raises InputError when it is none."""
    if not isinstance(fields, Mapping) or not all(
        isinstance(fields.get(name), str) for name in ("kind", "rule")
    ):
        raise InputError(f"a saved grammar has a kind and a rule; got {fields!r:.60}")
    return _checked(Grammar(fields["kind"], fields["rule"]))


def read_schema(argument: str) -> Grammar:
    """A JSON schema given as such, or as the name of a file that holds one.

    Raises InputError when it is neither, and as `json_schema` does.
    """
    if argument.lstrip().startswith(("{", "[")):
        text, where = argument, "the schema"
    else:
        where = argument
        try:
            text = Path(argument).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8: {error}; convert it first") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"the schema {argument!r:.120} cannot be read: {reason}; give a file or JSON text"
            ) from None
    try:
        schema = json.loads(text)
    except RecursionError:
        raise InputError(f"{where} is nested too deeply; flatten it with $defs") from None
    except ValueError as error:
        raise InputError(f"{where} is not valid JSON: {error}") from None
    return json_schema(schema)


def _as_regex(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _check_text(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"the {what} {text!r:.60} is not valid Unicode; correct it") from None


def _checked(grammar: Grammar) -> Grammar:
    """`grammar` itself, once llguidance has taken it."""
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar.lark())
    if failed or messages:
        raise InputError(f"this {grammar.kind} cannot be enforced: {plain_reason(messages[0])}")
    return grammar


def plain_reason(message: str) -> str:
    """llguidance's message on one line, without its drawing of the grammar."""
    lines = [line.strip() for line in message.splitlines()]
    for line in lines:
        if line.startswith("error: "):  # of a regex, after a drawing of it
            return line.removeprefix("error: ")
    text = next((line for line in lines if line), "unknown reason")
    place, colon, rest = text.partition(": ")
    if colon and place.startswith(("at ", "failed to compile")):
        text = rest
    return text if len(text) <= 300 else text[:299] + "…"
