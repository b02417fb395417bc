"""What the families of encoders share: keys, names of weights, tables of positions."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.errors import InputError
from ..activations import ACTIVATIONS
from ..config import Norm
from ..encoder_config import StackConfig
from ..families.common.reader import ConfigReader
from ..relative_bias import RelativeBias

if TYPE_CHECKING:
    from ..families.common.weights import Weights

# Keys of training and of heads that an encoder does not have.
_UNUSED = (
    "attention_probs_dropout_prob",
    "activation_dropout",
    "classifier_dropout",
    "classif_dropout",
    "decoder_layerdrop",
    "dropout",
    "dropout_rate",
    "encoder_layerdrop",
    "gradient_checkpointing",
    "hidden_dropout_prob",
    "init_std",
    "initializer_factor",
    "output_past",
    "qa_dropout",
    "seq_classif_dropout",
    "task_specific_params",
)


# How a reply is searched for: sessions ban `bad_words_ids`, and who generates chooses the rest.
SEARCH = ("bad_words_ids", "forced_eos_token_id", "num_beams")


def ignore(reader: ConfigReader, *keys: str) -> None:
    """Pass over `keys`, and those that change nothing in any of these families."""
    for key in (*_UNUSED, *keys):
        reader.take(key, (object, bool), None)


def activation(name: str, key: str) -> str:
    """The activation by any of its public names. Raises InputError for an unknown one."""
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise InputError(f"config.json has {key} = {name!r}; Pippin implements {known}")
    return ACTIVATIONS[name]


def head_dim(hidden: int, heads: int) -> int:
    """D, where heads share the width. Raises InputError where it does not divide."""
    if hidden % heads:
        raise InputError(f"config.json has hidden size {hidden}, no multiple of {heads} heads")
    return hidden // heads


def bert_stack(reader: ConfigReader, context: int = 512, **changes: Any) -> StackConfig:
    """The stack that BERT's keys describe; `changes` are fields that a family has otherwise."""
    hidden = reader.positive("hidden_size", 768)
    heads = reader.positive("num_attention_heads", 12)
    return StackConfig(
        hidden_size=hidden,
        heads=heads,
        head_dim=head_dim(hidden, heads),
        feed_forward=reader.positive("intermediate_size", 3072),
        layers=reader.positive("num_hidden_layers", 12),
        norm=Norm(reader.take("layer_norm_eps", float, 1e-12), kind="layer", bias=True),
        activation=activation(reader.take("hidden_act", str, "gelu"), "hidden_act"),
        positions=reader.positive("max_position_embeddings", context),
        embedding_norm=True,
        **changes,
    )


def relative_bias(buckets: int, max_distance: int, bidirectional: bool) -> RelativeBias:
    """Raises InputError for numbers that make no buckets."""
    exact = buckets // 4 if bidirectional else buckets // 2
    if exact < 1 or max_distance <= exact:
        raise InputError(
            f"config.json has {buckets} relative_attention_num_buckets up to a distance of "
            f"{max_distance}; expected at least 4, and a distance beyond {exact}"
        )
    return RelativeBias(buckets, max_distance, bidirectional)


def drop_copies(weights: "Weights", table: str, *copies: str) -> "Weights":
    """Leave out copies of `table` that a checkpoint stores; another table there is refused."""
    import mlx.core as mx

    kept = dict(weights)
    for name in copies:
        copy = kept.pop(name, None)
        if copy is None:
            continue
        if table not in kept:
            kept[table] = copy
        elif copy.shape != kept[table].shape or not mx.array_equal(copy, kept[table]):
            raise InputError(
                f"the checkpoint's {name} is another table than {table}; Pippin implements one "
                "for both"
            )
    return kept


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Marian's table of positions, float32 [positions, width] (arXiv:1706.03762, §3.5).

    Sines of all angles stand before their cosines, where the paper has them in turn: the same
    numbers in another order of the columns.
    """
    angles = np.arange(positions)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)
