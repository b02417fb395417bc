"""Sentences of a text, and the words in them that carry its meaning. English is assumed."""

import re
import unicodedata

_TERMINATOR = re.compile(r"""[.!?…]+["'”’)\]*_]*""")
_ABBREVIATIONS = {
    *("e.g", "i.e", "cf", "vs", "etc", "fig", "figs", "eq", "eqs", "sec", "ch", "no", "nos"),
    *("p", "pp", "vol", "approx", "resp", "dr", "mr", "mrs", "ms", "prof", "st", "al", "ca"),
}
_BEFORE = re.compile(r"[\w.]+$")
_WORD = re.compile(r"[^\W_]+(?:[.'’_-][^\W_]+)*")
_NUMBER = re.compile(r"\d")
_INDENT = 80  # characters, at most, of a list number and the spaces before it
_ENDING = re.compile(r"(?:ing|edly|ed|es|s|ly)$")
_NEGATIONS = {
    *("not", "no", "never", "none", "cannot", "neither", "nor", "without", "nothing", "unless"),
}
# Words that any two sentences may share.
_EMPTY = frozenset(
    _WORD.findall("""
a about above after again all also am an and any are as at be because been before being below
between both but by can could did do does doing down during each else ever few for from further
get had has have having he her here hers him his how i if in into is it its itself just let like
make may me might more most must my of off on once only or other our out over own please same
say shall she should so some such than that the their them then there these they this those
through to too under until up upon us use used uses using very was we were what when where which
while who whom whose why will with would you your tell explain describe mean means according
document manual text passage passages page pages section called
""")
)
_SPACES = re.compile(r"\s+")
_SOLID = re.compile(r"\S")
_BROKEN_WORD = re.compile(r"(?<=\w)[-‐]\s*\n\s*(?=[a-z])")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_LINE_END = re.compile(r"(?<=[.!?…:])\n|\n(?!\s*(?:[a-z(,;&]|\Z))")
_QUOTES = str.maketrans("‘’‚“”„–—‑‐−", "'''\"\"\"-----")


def plain(text: str) -> str:
    """`text` as two spellings of it are compared: ligatures and typographic quotes and dashes
    resolved, words that a line end broke joined, white space single, case folded."""
    text = unicodedata.normalize("NFKC", text.replace("\xad", ""))
    text = _BROKEN_WORD.sub("", text).translate(_QUOTES)
    return _SPACES.sub(" ", text).strip().casefold()


def sentence_end(text: str, start: int, *, lines: bool, whole: bool) -> int | None:
    """Where the sentence at `start` ends, or None where the text so far does not decide it.

    An empty line ends a sentence, with `lines` any line end before what may begin one; `whole`:
    nothing follows the text.
    """
    return _sentence_end(text, start, _stop(text, start, lines), whole)


def _stop(text: str, start: int, lines: bool) -> re.Match[str] | None:
    return (_LINE_END if lines else _PARAGRAPH_END).search(text, start)


def _sentence_end(text: str, start: int, stop: re.Match[str] | None, whole: bool) -> int | None:
    limit = stop.start() if stop else len(text)
    for found in _TERMINATOR.finditer(text, start, limit):
        if found.end() == limit and stop is None:
            return limit if whole else None
        if _ends(text, found):
            after = _SOLID.search(text, found.end())
            if after is None and not whole:
                return None
            if after is None or not after.group().islower():
                return found.end()
    if stop is not None:
        return limit
    return len(text) if whole else None


def _ends(text: str, found: re.Match[str]) -> bool:
    """Whether a full stop is more than an abbreviation's, a list number's or a name's."""
    if not text[found.end() : found.end() + 1].isspace():
        return False
    if not found.group().startswith(".") or found.group().startswith(".."):
        return True
    before = _BEFORE.search(text, max(0, found.start() - 20), found.start())
    word = before.group().lower() if before else ""
    line = text[max(0, found.start() - _INDENT) : found.start()].rpartition("\n")[2].strip()
    return (
        word not in _ABBREVIATIONS
        and not (len(word) == 1 and word.isalpha())
        and not (line == word and (word.isdigit() or len(word) == 1))
    )


def split_sentences(text: str, *, lines: bool = False) -> list[tuple[int, int]]:
    """Start and end of each sentence, white space around it left out; `lines` as above."""
    spans, at = [], 0
    stop = _stop(text, 0, lines)
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if stop is not None and stop.start() < at:
            stop = _stop(text, at, lines)  # looked for once, however many sentences stand before it
        end = _sentence_end(text, at, stop, True)
        trimmed = at + len(text[at:end].rstrip())
        spans.append((at, trimmed))
        at = max(end, at + 1)
    return spans


def content_words(text: str) -> list[str]:
    """The words that say something, without endings, in their order; numbers are words too."""
    words = [word for word in _WORD.findall(plain(text)) if word not in _EMPTY]
    return [stem(word) for word in words if word not in _NEGATIONS]


def stem(word: str) -> str:
    """A word without a plural, participle or adverb ending, where three letters remain."""
    short = _ENDING.sub("", word)
    if len(short) < 3 or _NUMBER.search(word):
        return word
    if len(short) > 3 and short[-1] == short[-2] and short != word:
        short = short[:-1]  # "running", "run"
    return short.removesuffix("e") if len(short) > 3 else short


def numbers(text: str) -> set[str]:
    """The words that hold a digit."""
    return {word for word in _WORD.findall(plain(text)) if _NUMBER.search(word)}


def negations(text: str) -> int:
    """How many words in it turn a meaning round."""
    words = _WORD.findall(plain(text))
    return sum(word in _NEGATIONS or word.endswith("n't") for word in words)
