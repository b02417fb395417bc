"""Which weights are quantized, and how: the recipes `q4` and `int8`, applied to MLX modules.

The result is an ordinary quantized MLX decoder, so there is one way from quantized weights to
ONNX, and MLX itself can run what was exported.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from ..mlx_model.decoder import Decoder
from ..mlx_model.numpy_ops import dense_weight

GROUP_SIZE = 32  # columns that share a scale, where the checkpoint does not say
_BITS = {"q4": 4, "int8": 8}  # of linear layers
_TABLE_BITS = 8  # of the embedding and the head, which four bits harm most


def quantize_decoder(decoder: Decoder, weights: str) -> None:
    """Quantize, in place, the layers that the checkpoint left in floating point.

    `weights` is "q4" or "int8". What the checkpoint has quantized stays as it is, but for one
    case: q4 of a checkpoint with nothing below 8 bits. A layer whose rows are no multiple of the
    group stays in floating point.
    """
    bits = _BITS[weights]
    quantized = [m for _, m in decoder.named_modules() if isinstance(m, nn.QuantizedLinear)]
    if quantized and min(layer.bits for layer in quantized) > bits:
        _dequantize_linears(decoder)

    def settings(path: str, module: nn.Module) -> bool | dict[str, int]:
        if not isinstance(module, nn.Linear | nn.Embedding):
            return False
        if module.weight.shape[-1] % GROUP_SIZE:
            return False
        # In float32, whatever it was stored in: then the zero points are integers.
        module.weight = module.weight.astype(mx.float32)
        is_table = isinstance(module, nn.Embedding) or path == "lm_head"
        return {"group_size": GROUP_SIZE, "bits": _TABLE_BITS if is_table else bits}

    nn.quantize(decoder, class_predicate=settings)


def _dequantize_linears(decoder: Decoder) -> None:
    """Give the linear layers other than the head back their floating-point weights."""
    plain = []
    for path, layer in decoder.named_modules():
        if isinstance(layer, nn.QuantizedLinear) and path != "lm_head":
            weight = dense_weight(layer)
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in layer)
            linear.weight = weight
            if "bias" in layer:
                linear.bias = layer.bias
            plain.append((path, linear))
    decoder.update_modules(tree_unflatten(plain))
