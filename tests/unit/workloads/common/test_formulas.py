"""Functions of tensors that never reach the C library, and a look for those that would."""

import ast
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import crpipe.workloads
from crpipe.workloads.common import formulas

SOURCE = Path(crpipe.workloads.__file__).parent
# In float32 these call functions of libm that glibc 2.41 changed: torch only at the end of a tensor.
NUMPY = {
    *("log10", "log1p", "expm1", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "cbrt", "logaddexp", "logaddexp2", "asin", "acos", "atan", "atan2"),
    *("asinh", "acosh", "atanh"),
}
TORCH = {
    *("softplus", "mish", "gelu", "elu", "selu", "celu", "Softplus", "Mish", "GELU", "ELU", "SELU", "CELU"),
    *("sinh", "cosh", "asinh", "acosh", "atanh", "arcsinh", "arccosh", "arctanh", "atan2", "arctan2"),
}
RANDOM = {"standard_normal", "standard_exponential", "standard_gamma"}
# torch's own where nothing depends on the C library: see formulas.gelu; numbers of float64
KNOWN = {
    ("common/formulas.py", "gelu"),
    ("common/formulas.py", "atan2"),
    ("xec/models/features.py", "atan2"),
}


def calls(text):
    """Return the calls that need the C library's float32 functions: (name, line)."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        single = owner == "rng" and node.attr in RANDOM
        if (owner == "np" and node.attr in NUMPY) or (owner != "np" and node.attr in TORCH):
            if owner not in ("elementary", "formulas", "math"):
                yield node.attr, node.lineno
        elif single:
            yield node.attr, node.lineno


def imported(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch", "numpy")):
            yield from ((name.name, node.lineno) for name in node.names if name.name in TORCH | NUMPY)


def is_double(text, line, name):
    """Return whether a random number is drawn in float64: nothing in the call says float32."""
    return name in RANDOM and "float32" not in text.splitlines()[line - 1]


def test_no_workload_computes_float32_by_the_c_library():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = str(path.relative_to(SOURCE)), path.read_text()
        if "/export" in name or name == "common/elementary.py":
            continue
        for call, line in [*calls(text), *imported(text)]:
            if (name, call) not in KNOWN and not is_double(text, line, call):
                found.append(f"{name}:{line}: {call}")
    assert found == [], "use crpipe.workloads.common.elementary or crpipe.workloads.common.formulas"


@pytest.mark.parametrize(
    "line",
    [
        "np.log10(x)",
        "f = np.arctan2",
        "functional.softplus(x)",
        "x = nn.GELU()",
        "y = x.sinh()",
        "rng.standard_normal(3, np.float32)",
    ],
)
def test_the_look_finds_them(line):
    assert [call for call, at in calls(line) if not is_double(line, at, call)]


def test_the_look_finds_imports():
    assert list(imported("from torch.nn.functional import softplus"))


def both(ours, theirs, *arguments):
    """Compare values and slopes of two functions."""
    results = []
    for function in (ours, theirs):
        inputs = [each.clone().requires_grad_() for each in arguments]
        value = function(*inputs)
        value.sum().backward()
        results.append([value.detach(), *(each.grad for each in inputs)])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there, rtol=2e-6, atol=2e-6)  # some ulps of the share, times x


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 43), (64, 64), (129, 257)])
def test_they_are_the_functions_of_torch(shape):
    x = torch.empty(shape).uniform_(-30, 30, generator=torch.Generator().manual_seed(1))
    y = torch.empty(shape).uniform_(0.1, 30, generator=torch.Generator().manual_seed(2))
    both(formulas.softplus, functional.softplus, x)
    both(formulas.gelu, functional.gelu, x / 5)
    both(formulas.Gelu(), torch.nn.GELU(), x.t() / 5)
    both(formulas.atan2, torch.atan2, x, y)


def test_gelu_of_a_part_of_a_tensor_and_of_other_types():
    x = torch.linspace(-4, 4, 1001)
    assert torch.equal(formulas.gelu(x.bfloat16()), functional.gelu(x.bfloat16()))
    assert torch.equal(formulas.gelu(x.double()), functional.gelu(x.double()))
    torch.testing.assert_close(formulas.gelu(x[::3]), functional.gelu(x[::3]), rtol=2e-6, atol=1e-6)
    assert formulas.gelu(x[:0]).shape == (0,)
