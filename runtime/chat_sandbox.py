"""The jinja2 environment that chat templates run in; imported when the first one is rendered."""

from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def make_environment(max_repeated: int, max_power_bits: int) -> ImmutableSandboxedEnvironment:
    """An environment with the settings, tags and globals that chat templates are written for.

    `*` may not make a text or list of more than `max_repeated` items, nor `**` a number of more
    than `max_power_bits` bits.
    """

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "*":
                _limit_repeat(left, right, max_repeated)
            else:
                _limit_power(left, right, max_power_bits)
            return super().call_binop(context, operator, left, right)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's own words; here it only renders."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # a call block, so that names set inside stay inside, as they do in transformers
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> str:
        return caller()


class _Dict:
    """Stands for `dict`, without the way from a class to the interpreter's insides."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Namespace that takes no underscored names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # `self` may be a name that the template sets
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it sets {name!r} on a namespace; names must not begin with '_'")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _limit_repeat(left: Any, right: Any, limit: int) -> None:
    for value, count in ((left, right), (right, left)):
        repeats = isinstance(value, str | list | tuple) and isinstance(count, int)
        if repeats and len(value) * count > limit:
            raise SecurityError(f"it repeats a value to more than {limit:,} items")


def _limit_power(base: Any, exponent: Any, limit: int) -> None:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * exponent > limit:
        raise SecurityError("it raises a number to a power that is too large")
