"""Options that several commands share, and help texts with the options in named sections."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from ..apps.structured import Grammar

DEFAULT_MODEL = "smollm2"
BACKENDS = ("auto", "mlx", "onnx")
WEIGHTS = ("fp32", "fp16", "q4", "int8")
KV_BITS = ("4", "8")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SectionedOption(click.Option):
    """An option that the help text shows under `section`."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionedCommand(click.Command):
    """Shows options by section, in the order in which the sections first occur."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                section = getattr(parameter, "section", "Options")
                sections.setdefault(section, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def known_models() -> list[str]:
    """The names of models that need no path: aliases, and what is in the store."""
    from ..mlx_model.checkpoints.aliases import ALIASES
    from ..mlx_model.checkpoints.store import list_models

    return list(dict.fromkeys([*ALIASES, *(model.name for model in list_models())]))


def _complete_model(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names that begin like that; where there are none, paths, which the shell completes.

    Not both: bash forgets the names when it is told to look for paths.
    """
    names = [CompletionItem(name) for name in known_models() if name.startswith(begun)]
    return names or [CompletionItem(begun, type="file")]


def model_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """[MODEL], the default model when it is left out."""
    argument = click.argument("model", default=DEFAULT_MODEL, shell_complete=_complete_model)
    return argument(function)


backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    help="What runs the model; onnx exports a checkpoint once, then keeps the export.  "
    "[default: auto, which is mlx on a Mac and onnx elsewhere]",
)
weights_option = click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    help="Weights of the export that the onnx backend runs.  "
    "[default: q4, or what an exported folder has]",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPU threads of the onnx backend.  [default: one a physical core]",
)
precise_option = click.option(
    "--precise",
    is_flag=True,
    help="Let the onnx backend compute in floats, as mlx does, where the export also has a quicker "
    "graph with activations and KV cache in int8.",
)
kv_bits_option = click.option(
    "--kv-bits",
    type=click.Choice(KV_BITS),
    callback=lambda _, __, value: None if value is None else int(value),
    help="Bits of a value in the mlx backend's KV cache.  [default: unquantized]",
)
adapter_option = click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="LoRA or DoRA adapter to fuse into the checkpoint, in PEFT's or mlx-lm's format.",
)
draft_option = click.option(
    "--draft",
    metavar="MODEL",
    help="A smaller model with the same tokens that guesses ahead; MODEL checks its guesses.",
)
offline_option = click.option(
    "--offline", is_flag=True, help="Use only models that are here; download nothing."
)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--json, which the command gets as `as_json`; its variable is still PIPPIN_<COMMAND>_JSON."""

    @functools.wraps(function)
    def rename(*args: Any, json: bool, **keywords: Any) -> Any:
        return function(*args, as_json=json, **keywords)

    return click.option("--json", is_flag=True, help="Print one JSON document.")(rename)


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Backend, its options and what is loaded; the command gets them as `load_model` takes them."""

    @functools.wraps(function)
    def rename(*args: Any, offline: bool, **keywords: Any) -> Any:
        return function(*args, fetch=not offline, **keywords)

    options = (
        offline_option,
        adapter_option,
        kv_bits_option,
        precise_option,
        threads_option,
        weights_option,
        backend_option,
    )
    for option in options:
        rename = option(rename)
    return rename


def _parse_bias(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[int, float] | None:
    """`ID=BIAS` texts as a mapping; None when there are none."""
    bias = {}
    for text in values:
        token, _, value = text.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise click.BadParameter(f"{text!r} does not read ID=BIAS, like 42=-1.5") from None
    return bias or None


def _longest_draft(_: click.Context, __: click.Parameter, value: bool | None) -> int | None:
    """The flag of prompt lookup as `SamplingParams` has it."""
    if not value:
        return None if value is None else 0
    from ..runtime.speculation import LONGEST

    return LONGEST


# option, type, help; the name is that of the field in `SamplingParams`
_NUMBERS = (
    ("--temperature", float, "0 takes the likeliest token each time."),
    ("--top-k", int, "Keep the K likeliest tokens; 0 keeps all."),
    ("--top-p", float, "Keep the likeliest tokens up to probability P."),
    ("--min-p", float, "Drop tokens below P times the likeliest one's."),
    ("--typical-p", float, "Keep the most typical tokens up to P."),
    ("--xtc-probability", float, "How often XTC drops the top choices."),
    ("--xtc-threshold", float, "Probability of a top choice for XTC."),
    ("--repetition-penalty", float, "Against tokens seen so far; 1 is off."),
    ("--presence-penalty", float, "Subtracted once for a token in the reply."),
    ("--frequency-penalty", float, "Subtracted at each occurrence in the reply."),
    ("--penalty-last-n", int, "Tokens the three penalties look at.  [default: all]"),
    ("--dry-multiplier", float, "DRY, against repeated passages; 0 is off."),
    ("--dry-base", float, "How DRY grows with a passage's length."),
    ("--dry-allowed-length", int, "Tokens that DRY lets repeat."),
    ("--dry-penalty-last-n", int, "Tokens that DRY looks at.  [default: all]"),
    ("--seed", int, "The same seed gives the same text.  [default: random]"),
)

SAMPLING_HELP = """Sampling values that are not given are those that the model's
generation_config.json recommends, if it asks for sampling; else each token is the likeliest one.
A filter such as --top-p without --temperature samples at temperature 1."""


def sampling_options(
    function: Callable[..., Any], *, without: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """All of `SamplingParams`; the command gets those that were given as one dict, `sampling`.

    `without`: fields that the command has no option for.
    """
    section: dict[str, Any] = {"cls": SectionedOption, "section": "Sampling"}
    options = {
        "max_tokens": click.option(
            "--max-tokens",
            type=int,
            help="Longest reply, in tokens.  [default: 1024, or what the context leaves]",
        ),
        "stop": click.option(
            "--stop", multiple=True, metavar="TEXT", help="End the reply at TEXT. May be repeated."
        ),
        "ignore_eos": click.option(
            "--ignore-eos", is_flag=True, default=None, help="Run on past end-of-turn tokens."
        ),
        "prompt_lookup": click.option(
            "--prompt-lookup/--no-prompt-lookup",
            default=None,
            callback=_longest_draft,
            help="Guess several tokens at once where the text repeats itself.  "
            "[default: where that changes no token]",
        ),
        **{
            name.removeprefix("--").replace("-", "_"): click.option(
                name, type=kind, help=text, **section
            )
            for name, kind, text in _NUMBERS
        },
        "logit_bias": click.option(
            "--logit-bias",
            multiple=True,
            metavar="ID=BIAS",
            callback=_parse_bias,
            help="Add BIAS to a token's logit; -inf bans it. May be repeated.",
            **section,
        ),
    }
    for name in without:
        del options[name]

    @functools.wraps(function)
    def gather(*args: Any, **keywords: Any) -> Any:
        values = {name: keywords.pop(name) for name in options}
        given = {name: v for name, v in values.items() if v is not None and v != ()}
        return function(*args, sampling=given, **keywords)

    for option in reversed(options.values()):
        gather = option(gather)
    return gather


def structured_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the reply may be; the command gets a `grammar`, None where none was given.

    Raises InputError for more than one of them, and for one that cannot be enforced.
    """
    section: dict[str, Any] = {"cls": SectionedOption, "section": "Structured output"}
    options = (
        click.option(
            "--schema", metavar="FILE|JSON", help="Reply in JSON that the schema allows.", **section
        ),
        click.option("--json-object", is_flag=True, help="Reply with any JSON object.", **section),
        click.option(
            "--regex", metavar="PATTERN", help="Reply with a text that PATTERN matches.", **section
        ),
        click.option(
            "--choice",
            multiple=True,
            metavar="TEXT",
            help="Reply with one TEXT of several; repeat it for each.",
            **section,
        ),
    )

    @functools.wraps(function)
    def gather(
        *args: Any,
        schema: str | None,
        json_object: bool,
        regex: str | None,
        choice: tuple[str, ...],
        **keywords: Any,
    ) -> Any:
        grammar = _grammar(schema, json_object, regex, choice)
        return function(*args, grammar=grammar, **keywords)

    for option in reversed(options):
        gather = option(gather)
    return gather


def _grammar(
    schema: str | None, json_object: bool, regex: str | None, choice: tuple[str, ...]
) -> "Grammar | None":
    given = {
        "--schema": schema is not None,
        "--json-object": json_object,
        "--regex": regex is not None,
        "--choice": bool(choice),
    }
    names = [name for name, is_given in given.items() if is_given]
    if not names:
        return None
    from ..apps import structured
    from ..runtime.errors import InputError

    if len(names) > 1:
        raise InputError(f"{' and '.join(names)} exclude each other; give one of them")
    if schema is not None:
        return structured.read_schema(schema)
    if regex is not None:
        return structured.regex(regex)
    return structured.choice(choice) if choice else structured.json_object()
