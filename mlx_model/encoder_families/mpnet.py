"""MPNet (arXiv:2004.09297): BERT without token types, with T5's relative bias beside positions."""

from ..encoder_config import EncoderConfig
from ..families.common.reader import ConfigReader
from ..families.common.weights import Weights, drop, rename
from .common import bert_stack, ignore, relative_bias

_BUCKETS, _MAX_DISTANCE = 32, 128  # whatever the config says, the model is computed with these
_OFFSET = 2  # positions begin behind the padding token's


def read_config(reader: ConfigReader) -> EncoderConfig:
    """Translate an MPNet config.json."""
    reader.only("relative_attention_num_buckets", _BUCKETS)
    ignore(reader, "tie_word_embeddings")
    stack = bert_stack(
        reader,
        position_offset=_OFFSET,
        relative=relative_bias(_BUCKETS, _MAX_DISTANCE, bidirectional=True),
    )
    return EncoderConfig("mpnet", reader.positive("vocab_size"), token_types=0, stack=stack)


def convert(weights: Weights, config: EncoderConfig) -> Weights:
    """Without the pooler and the head of pre-training."""
    weights = rename(
        weights,
        (r"^mpnet\.", ""),
        (r"^embeddings\.word_embeddings\.", "embed_tokens."),
        (r"^embeddings\.position_embeddings\.", "stack.embed_positions."),
        (r"^embeddings\.LayerNorm\.", "stack.embedding_norm."),
        (r"^encoder\.relative_attention_bias\.", "stack.relative_bias."),
        (r"^encoder\.layer\.", "stack.layers."),
        (r"\.attention\.attn\.([qkvo])\.", r".self_attn.\1_proj."),
        (r"\.attention\.LayerNorm\.", ".self_attn_norm."),
        (r"\.intermediate\.dense\.", ".mlp.up_proj."),
        (r"\.output\.dense\.", ".mlp.down_proj."),
        (r"\.output\.LayerNorm\.", ".mlp_norm."),
    )
    return drop(weights, r"lm_head\..*|pooler\..*|embeddings\.position_ids")
