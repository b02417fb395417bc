"""Gemma 3 with eyes: its language model alone; what belongs to images is left out."""

from dataclasses import replace

from ..config import ModelConfig
from . import gemma3_text
from .common.reader import ConfigReader
from .common.weights import Weights, drop, rename

_TEXT = "config.json's text_config"
# What checkpoints leave out of text_config, which is most of it.
_ABSENT = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
_IMAGES = (
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "boi_token_id",
    "eoi_token_id",
    "image_token_id",
)


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate the text_config of a Gemma 3 config.json."""
    reader.take("vision_config", dict, None)
    for key in _IMAGES:
        reader.take(key, int, None)
    text = reader.take("text_config", dict)
    tied = reader.take("tie_word_embeddings", bool, True)
    inner = ConfigReader({**_ABSENT, "tie_word_embeddings": tied, **text}, _TEXT)
    config = replace(gemma3_text.read_config(inner), family="gemma3")
    inner.finish()
    return config


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Drop what sees, and call the rest what a text model calls it."""
    weights = drop(weights, r"(model\.)?(vision_tower|multi_modal_projector)\..*")
    return rename(
        weights,
        (r"^language_model\.lm_head\.", "lm_head."),
        (r"^(model\.)?language_model\.(model\.)?", "model."),
    )
