"""Tiny random encoders and encoder-decoders, made by `transformers`, and what it says of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .tiny import randomize

_BERT = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 40,
}
_DISTILBERT = {
    "vocab_size": 61,
    "dim": 48,
    "hidden_dim": 80,
    "n_layers": 3,
    "n_heads": 3,
    "max_position_embeddings": 40,
}
# 160 tokens pass the distance beyond which all distances are one
_MPNET = _BERT | {"max_position_embeddings": 162}
_T5 = {
    "vocab_size": 97,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "decoder_start_token_id": 0,
}
_MARIAN = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 96,
    "decoder_start_token_id": 96,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}

# name: model class, keys of its config
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _BERT),
    "bert-one-type": ("BertModel", _BERT | {"type_vocab_size": 1, "hidden_act": "gelu_new"}),
    "bert-pretrained": ("BertForMaskedLM", _BERT | {"layer_norm_eps": 1e-5, "hidden_act": "relu"}),
    "distilbert": ("DistilBertModel", _DISTILBERT),
    "distilbert-pretrained": ("DistilBertForMaskedLM", _DISTILBERT | {"activation": "relu"}),
    "mpnet": ("MPNetModel", _MPNET),
    "mpnet-pretrained": ("MPNetForMaskedLM", _MPNET),
}
SEQ2SEQ: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5-v1.1": (
        "T5ForConditionalGeneration",
        _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5-silu-near": (
        "T5ForConditionalGeneration",
        _T5
        | {
            "feed_forward_proj": "gated-silu",
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
        },
    ),
    "marian": (
        "MarianMTModel",
        _MARIAN | {"scale_embedding": True, "activation_function": "swish"},
    ),
    "marian-unscaled": ("MarianMTModel", _MARIAN | {"activation_function": "relu"}),
}


@dataclass(frozen=True)
class TinyStack:
    """A checkpoint on disk and the torch model that was read from it."""

    path: Path
    reference: Any  # in eval mode, float32
    vocab_size: int

    def ids(self, length: int, seed: int = 0) -> list[int]:
        """Random tokens, none of them what a model takes for padding."""
        return np.random.default_rng(seed).integers(3, self.vocab_size - 1, length).tolist()

    def hidden(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The encoder's last hidden state [B, L, E]."""
        import torch

        encoder = getattr(self.reference, "base_model", self.reference)
        with torch.inference_mode():
            out = encoder(torch.tensor(ids), attention_mask=torch.tensor(mask))
        return out.last_hidden_state.numpy()

    def logits(self, prompt: list[int], reply: list[int]) -> np.ndarray:
        """Logits [L, V] of the start token and each of the reply's tokens, in one call."""
        import torch

        start = self.reference.config.decoder_start_token_id
        with torch.inference_mode():
            out = self.reference(
                input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *reply]])
            )
        return out.logits[0].numpy()


def make_stack(folder: Path, kind: str, config: Mapping[str, Any], seed: int = 0) -> TinyStack:
    """Write a random checkpoint of the transformers class `kind` to `folder`."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**config))
    randomize(model)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            # T5 does not scale its scores, so its own queries are small.
            if name.endswith("Attention.q.weight"):
                tensor.mul_(config["d_kv"] ** -0.5)
    model.save_pretrained(folder)
    # Read again: what is not stored follows from the config.
    reference = model_class.from_pretrained(folder, attn_implementation="eager").eval()
    return TinyStack(folder, reference, config["vocab_size"])


def write_word_tokenizer(folder: Path, vocab_size: int) -> list[str]:
    """A tokenizer of words w3, w4, … with BERT's tokens around them; returns the words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = [f"w{index}" for index in range(3, vocab_size)]
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2} | {w: i for i, w in enumerate(words, 3)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[PAD]"))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return words


def error(found: Any, wanted: np.ndarray) -> float:
    """The largest difference relative to the largest value."""
    return float(np.abs(np.array(found) - wanted).max() / np.abs(wanted).max())
