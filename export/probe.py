"""A graph that was just written, run once or twice to look at values in it."""

from collections.abc import Iterable
from pathlib import Path

import onnxruntime as ort
from onnx import ModelProto, NodeProto

from ..runtime.memory import return_freed_memory
from ..runtime.ort_graph import open_session
from .builder import values_read


def open_probe(model: ModelProto, path: Path) -> ort.InferenceSession:
    """A session of `model`, whose data files stand beside `path`, with little memory.

    What does not lead to its outputs is dropped from `model`, above all the head: its product
    takes most memory. Raises InputError when the model cannot be loaded.
    """
    _keep_what_leads_to_outputs(model)
    probe = path.with_name(f"probe-{path.name}")
    probe.write_bytes(model.SerializeToString(deterministic=True))
    return_freed_memory()
    try:
        return open_session(probe, threads=None, once=True)
    finally:
        probe.unlink()


def _keep_what_leads_to_outputs(model: ModelProto) -> None:
    needed, kept = {arg.name for arg in model.graph.output}, []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed |= values_read([node])
    kept.reverse()
    del model.graph.node[:]
    model.graph.node.extend(kept)
    for values in (model.graph.initializer, model.graph.input):
        used = [value for value in values if value.name in needed]
        del values[:]
        values.extend(used)


def soonest(nodes: Iterable[NodeProto], added: Iterable[NodeProto]) -> list[NodeProto]:
    """`nodes` with each of `added` right behind the one that makes its first input.

    Sessions that are opened `once` run nodes in this order, and what was read last is let go.
    """
    readers: dict[str, list[NodeProto]] = {}
    for node in added:
        readers.setdefault(node.input[0], []).append(node)
    return [
        each
        for node in nodes
        for each in (node, *(reader for name in node.output for reader in readers.get(name, ())))
    ]
