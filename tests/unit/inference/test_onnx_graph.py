"""The graphs of an export need libraries that training does not: without one, its name and its extra."""

import sys

import pytest
import torch
from torch import nn

from crpipe.core.errors import MissingExtra
from crpipe.inference.onnx_graph import Graph


@pytest.mark.parametrize("library", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_library_is_named_with_its_extra(library, monkeypatch, tmp_path):
    """Before anything is written; what declares a graph needs none of them."""
    graph = Graph(nn.Linear(2, 1), {"input": "rows"}, ("output",), {"input": torch.ones(3, 2)}, 1e-5)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library} is needed .* pip install 'crpipe\[export\]'"):
        graph.export(tmp_path / "graph.onnx")
    assert list(tmp_path.iterdir()) == []
