"""The keywords of a JSON schema: one that is misspelled or foreign must not be passed over.

llguidance enforces or refuses what JSON Schema (2020-12) defines, and passes over everything else,
as the standard says. For a reply that has to match, that would hide a `maxLenght` or OpenAPI's
`nullable`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ...runtime.errors import InputError

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"),
    *("unevaluatedProperties", "propertyNames", "not", "if", "then", "else", "contentSchema"),
)
_OTHERS = (
    *("type", "enum", "const", "required", "dependentRequired", "dependencies", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minContains"),
    *("maxContains", "minProperties", "maxProperties", "$ref", "$dynamicRef", "$recursiveRef"),
    # words to the reader, which allow and forbid nothing
    *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
    *("$comment", "title", "description", "default", "examples", "example", "deprecated"),
    *("readOnly", "writeOnly", "contentEncoding", "contentMediaType", "discriminator"),
)
_KNOWN = frozenset((*_NAMED, *_LISTS, *_SINGLE, *_OTHERS))


def check_keywords(schema: Mapping[str, Any], path: str = "$") -> None:
    """Raise InputError for a keyword that JSON Schema does not have, wherever it stands."""
    for key in schema:
        if key not in _KNOWN and (not key.startswith("x-") or key == "x-guidance"):
            raise InputError(
                f"the schema has {key!r:.60} at {path:.120}, which is no keyword of JSON Schema; "
                "correct its spelling or remove it"
            )
    if str(schema.get("$ref", "")).startswith("#/x-"):
        raise InputError(
            f"the schema refers to {schema['$ref']!r:.60} at {path:.120}; put it under $defs"
        )
    for where, part in _subschemas(schema):
        if isinstance(part, Mapping):  # anything else is for llguidance to judge
            check_keywords(part, f"{path}.{where}")


def _subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _NAMED:
        if isinstance(named := schema.get(key), Mapping):
            yield from ((f"{key}.{name}", part) for name, part in named.items())
    for key in _LISTS:
        if isinstance(parts := schema.get(key), list):
            yield from ((f"{key}[{index}]", part) for index, part in enumerate(parts))
    for key in _SINGLE:
        yield key, schema.get(key)
