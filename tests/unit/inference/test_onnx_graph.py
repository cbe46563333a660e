"""The graphs of an export need libraries that training does not: without one, its name and its extra."""

import importlib
import sys

import pytest

from crpipe.core.errors import MissingExtra


@pytest.mark.parametrize("library", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_library_is_named_with_its_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "crpipe.inference.onnx_graph", raising=False)
    with pytest.raises(MissingExtra, match=rf"{library} is needed .* pip install 'crpipe\[export\]'"):
        importlib.import_module("crpipe.inference.onnx_graph")
