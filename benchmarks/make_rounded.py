"""Pippin's float32 export in 4 bits, rounded to nearest by onnxruntime. SOURCE TARGET BLOCK

The graph that onnxruntime-genai's builder makes for the CPU has the same operators: packed
projections, GroupQueryAttention with the rotation in it, and MatMulNBits (symmetric, accuracy
level 4) for all products, the head included.
"""

import shutil
import sys
from pathlib import Path

import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)


def main() -> None:
    source, target, block = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    model = onnx.load(source / "onnx" / "model.onnx")
    _untie_head(model)
    config = DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=True, accuracy_level=4)
    quantizer = MatMulNBitsQuantizer(model, algo_config=config)
    quantizer.process()
    (target / "onnx").mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file():
            shutil.copy(file, target)
    quantizer.model.save_model_to_file(str(target / "onnx" / "model.onnx"), True)


def _untie_head(model: onnx.ModelProto) -> None:
    """The head as a product with a matrix of its own: the quantizer knows MatMul alone."""
    graph = model.graph
    place, head = next((i, n) for i, n in enumerate(graph.node) if n.op_type == "Gemm")
    table = next(t for t in graph.initializer if t.name == head.input[1])
    weight = numpy_helper.from_array(numpy_helper.to_array(table).T.copy(), "head.weight")
    graph.initializer.append(weight)
    product = helper.make_node("MatMul", [head.input[0], weight.name], head.output, name="head")
    graph.node.remove(head)
    graph.node.insert(place, product)


if __name__ == "__main__":
    main()
