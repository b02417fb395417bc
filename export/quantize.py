"""Which weights are quantized, and how: the recipes `q4` and `int8`, applied to MLX modules.

The result is an ordinary quantized MLX decoder, so there is one way from quantized weights to
ONNX, and MLX itself can run what was exported.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from ..mlx_model.decoder import Decoder
from ..mlx_model.dense import dense_weight
from ..mlx_model.experts import ExpertLinear, QuantizedExpertLinear
from .nbits import is_exact

_QUANTIZED = nn.QuantizedLinear | QuantizedExpertLinear
GROUP_SIZE = 32  # columns that share a scale, where the checkpoint does not say
_BITS = {"q4": 4, "int8": 8}  # of linear layers
_WIDE_BITS = 8  # of the embedding and the head, which four bits harm most, and of mxfp8 layers

# Few rows, by which experts are chosen and weighed.
_ROUTERS = (".mlp.gate", ".shared_expert_gate")
# Tables that are not of tokens: little to save, and the graph reads them as floats.
_SMALL_TABLES = ("embed_positions", "embed_token_types", "relative_bias")


def quantize_decoder(decoder: Decoder, weights: str) -> None:
    """Quantize, in place, the layers that the checkpoint left in floating point.

    `weights` is "q4" or "int8". What the checkpoint has quantized stays as it is, but for two
    cases: q4 of a checkpoint with nothing below 5 bits, and layers in mxfp8, which ONNX's
    quantized products cannot hold: they become affine in 8 bits. A layer whose rows are no
    multiple of the group stays in floating point.
    """
    bits = _BITS[weights]
    quantized = [m for _, m in decoder.named_modules() if isinstance(m, _QUANTIZED)]
    anew = bool(quantized) and min(layer.bits for layer in quantized) > bits
    narrowed = {p for p, m in decoder.named_modules() if _is_linear(p, m)} if anew else set()
    inexact = {p for p, m in decoder.named_modules() if "scales" in m and not is_exact(m)}
    _dequantize(decoder, narrowed | inexact)

    def settings(path: str, module: nn.Module) -> bool | dict[str, int]:
        if not isinstance(module, nn.Linear | nn.Embedding | ExpertLinear):
            return False
        if module.weight.shape[-1] % GROUP_SIZE or path.endswith((*_SMALL_TABLES, *_ROUTERS)):
            return False
        # In float32, whatever it was stored in: then the zero points are integers.
        module.weight = module.weight.astype(mx.float32)
        wide = isinstance(module, nn.Embedding) or path == "lm_head" or path in inexact - narrowed
        return {"group_size": GROUP_SIZE, "bits": _WIDE_BITS if wide else bits}

    nn.quantize(decoder, class_predicate=settings)


def _is_linear(path: str, module: nn.Module) -> bool:
    """Whether it is a quantized linear layer other than the head."""
    return isinstance(module, _QUANTIZED) and path != "lm_head"


def _dequantize(decoder: Decoder, paths: set[str]) -> None:
    """Give these layers back their floating-point weights."""
    plain = []
    for path, layer in decoder.named_modules():
        if path not in paths:
            continue
        weight = dense_weight(layer)
        if isinstance(layer, nn.QuantizedEmbedding):
            dense = nn.Embedding(*weight.shape)
        elif isinstance(layer, QuantizedExpertLinear):
            count, outputs, inputs = weight.shape
            dense = ExpertLinear(count, inputs, outputs, bias="bias" in layer)
        else:
            dense = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in layer)
        if "bias" in layer:
            dense.bias = layer.bias
        dense.weight = weight
        plain.append((path, dense))
    decoder.update_modules(tree_unflatten(plain))
