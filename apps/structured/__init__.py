"""Structured output: replies that a JSON schema, a regex or a list of choices allows.

    grammar = json_schema({"type": "object", "properties": {"age": {"type": "integer"}}})
    constraint = constraint_for(generator, grammar)
    generator.generate(prompt, params, constraint=constraint)

A `Grammar` is checked when it is made and needs no model; `constraint_for` makes it one of a
model's tokens, and serves any number of replies, at the same time too.
"""

from .constraint import TokenConstraint, constraint_for
from .grammar import Grammar, choice, from_saved, json_object, json_schema, read_schema, regex

__all__ = [
    "Grammar",
    "TokenConstraint",
    "choice",
    "constraint_for",
    "from_saved",
    "json_object",
    "json_schema",
    "read_schema",
    "regex",
]
