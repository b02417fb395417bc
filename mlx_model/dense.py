"""The floating-point weight that a layer stands for, quantized in any of MLX's modes or not."""

import mlx.core as mx
import mlx.nn as nn


def dense_weight(layer: nn.Module, rows: slice = slice(None)) -> mx.array:
    """The weight [out, in] of a linear layer or embedding, or some rows; dequantized if need be.

    What is dequantized comes in float32, which holds every value of every mode.
    """
    if "scales" not in layer:
        return layer.weight[rows]
    layout = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
    weight, scales = layer.weight[rows], layer.scales[rows]
    if "biases" not in layer:  # mxfp4, nvfp4, mxfp8: the scales are 8-bit floats
        return mx.dequantize(weight, scales, **layout, dtype=mx.float32)
    scales, biases = (x.astype(mx.float32) for x in (scales, layer.biases[rows]))
    return mx.dequantize(weight, scales, biases, **layout)
