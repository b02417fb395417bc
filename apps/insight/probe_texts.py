"""The texts that heads are scored on, and which of their words belong together.

Marks in a text: {1:word} is a word to look at, {1<word} one that looks back at all words marked
{1:…} before it. Brackets and quotes need no marks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

Span = tuple[int, int]  # begin and end among the characters of a text

_MARK = re.compile(r"\{(\d+)([:<])([^{}]*)\}")
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Probe:
    """A text, and what in it belongs together."""

    text: str
    links: tuple[tuple[Span, tuple[Span, ...]], ...]  # who looks back, and at what


def coreference_probes() -> list[Probe]:
    """Pronouns, which look back at the one noun that they can stand for."""
    return [_marked(text) for text in _COREFERENCE]


def topic_probes() -> list[Probe]:
    """Texts that leave a topic and come back to it in other words, which look back at the first."""
    return [_marked(text) for text in _TOPICS]


def bracket_probes() -> list[Probe]:
    """Closing brackets and quotes, which look back at what they close."""
    return [Probe(text, tuple(_pairs(text))) for text in _BRACKETS]


def _marked(source: str) -> Probe:
    text, at = "", 0
    seen: dict[str, list[Span]] = {}
    links = []
    for mark in _MARK.finditer(source):
        text += source[at : mark.start()]
        name, kind, word = mark.groups()
        span = (len(text), len(text) + len(word))
        if kind == ":":
            seen.setdefault(name, []).append(span)
        else:
            links.append((span, tuple(seen[name])))
        text, at = text + word, mark.end()
    return Probe(text + source[at:], tuple(links))


def _pairs(text: str) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Every closing bracket or quote of a well-formed text, and where it was opened."""
    opened: list[tuple[str, int]] = []  # what will close it, and its place
    for place, char in enumerate(text):
        if opened and char == opened[-1][0]:
            _, start = opened.pop()
            yield (place, place + 1), ((start, start + 1),)
        elif char == '"' or char in _CLOSED_BY:
            opened.append((_CLOSED_BY.get(char, char), place))


_COREFERENCE = (
    "{1:Marta} phoned the bank because {1<she} had lost a card. The two boys looked up when the "
    "old {2:king} said that {2<he} was tired. Peter showed {3:Anna} the pears in the garden, and "
    "{3<she} asked for a basket. The {4:letters} reached my uncle on Monday, but {4<they} were "
    "wet. The doctor thanked the {5:sisters}, since {5<they} had waited all night. My {6:father} "
    "sold the farm to Mrs. Hill after {6<he} had broken a leg. Two guards stopped the {7:nun} and "
    "asked where {7<she} lived. Aunt Rosa kept the {8:coins} until {8<they} were worth more.",
    "When the nurses found the {1:boy}, {1<he} was asleep under a tree. The {2:queen} wrote to "
    "the generals that {2<she} would not pay. The driver moved the {3:boxes} into the hall before "
    "{3<they} could fall. {4:Tom} told his aunt that {4<he} knew the road. The mayor gave the "
    "{5:actress} a ring, which {5<she} never wore. We saw the {6:horses} from the bridge, and "
    "{6<they} ran to the river. The girls liked {7:Henry}, for {7<he} sang well. My brothers heard "
    "from the {8:duchess} that {8<she} had moved.",
)

_TOPICS = (
    "The {1:ship} left the {1:harbour} at dawn. Its {1:captain} counted the {1:sailors}, the "
    "{1:anchor} came up, and the {1:waves} grew. An hour away, in the town hall, three clerks "
    "sorted forms. A woman wanted a stamp for her passport, a man had filled in the wrong page, "
    "and the printer was out of paper again. At noon they closed the office and ate soup and "
    "cheese in the yard. In the evening the {1<crew} lowered the {1<sails}, the {1<boat} turned "
    "to the {1<port}, the {1<pilot} waved from the {1<pier}, and the {1<sea} was calm.",
    "An {1:oven} stood in the old {1:bakery}, where they kneaded {1:dough} and weighed {1:flour} "
    "for the {1:bread}. Far to the north, two climbers tied a rope to a rock. Snow had covered "
    "the path, the wind pulled at their tents, and the summit could not be seen. They melted ice "
    "for tea and waited for the morning, when the ridge would be safe. Down in the street the "
    "{1<baker} sold {1<rolls}, {1<cakes}, {1<toast}, {1<pastry} and a {1<loaf} with {1<butter}.",
)

_BRACKETS = (
    "The list (which was long) began with names [of people, of towns] and ended with a note: "
    '"Bring water (two bottles), some rope and the map [the blue one] by noon." She read it twice '
    '(once aloud), then said "fine" and left. The sum (four plus [two times three] or so) is ten, '
    'and the sign on the wall says "closed".',
    "def area ( width , height ) :\n    return abs ( width * ( height + 1 ) )\n\n"
    'sizes = [ 3 , [ 4 , 5 ] , 6 ]\nnames = { "small" : area ( 2 , sizes [ 0 ] ) , '
    '"large" : [ area ( 7 , 8 ) , 9 ] }\nprint ( names [ "large" ] [ 1 ] )\n',
)
