"""Run in one root file system: hashes of fifty operations and of a short training of each workload, as JSON.

python in_root.py FOLDER: the folder takes the campaigns. Prints {name: hash}.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from crpipe.train.numerics import numerics
from crpipe.train.ranks import World
from crpipe.workloads.common import elementary, formulas

REPOSITORY = Path(__file__).resolve().parents[2]
LENGTHS = (1, 3, 7, 15, 31, 100, 40003)
CAMPAIGNS = {
    "demo": ("ranges.last=0", "ranges.size=1", "simulator.files_per_range=1", "train.passes_per_link=2"),
    "direction-demo": ("ranges.last=1", "simulator.events_per_file=400", "train.passes_per_link=1"),
    "xec-demo": ("ranges.last=1", "simulator.events_per_file=200", "train.passes_per_link=1"),
}
COMMON = ("train.validate_every=0", "train.monitor=''", "split.validation_fraction=0.3")


def digest(arrays):
    total = hashlib.sha256()
    for each in arrays:
        array = each.detach().numpy() if isinstance(each, torch.Tensor) else np.asarray(each)
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def numbers(count, low, high):
    return low + (high - low) * ((np.arange(1, count + 1) * 0.6180339887498949) % 1.0)


def slopes(function, *inputs):
    leaves = [each.clone().requires_grad_() for each in inputs]
    value = function(*leaves)
    value.sum().backward()
    return [value, *(each.grad for each in leaves)]


def of_numpy():
    """float32 through the helpers, float32 and float64 of numpy, random numbers."""
    wide, above, unit = numbers(200_003, -9, 9), numbers(200_003, 1e-6, 90), numbers(200_003, -1, 1)
    both = {"log10": above, "log1p": above, "expm1": wide, "arcsin": unit, "arccos": unit}
    direct = {"exp": wide, "log": above, "sin": wide, "cos": wide, "sqrt": above, "log2": above, "exp2": wide}
    for name, x in both.items():
        yield f"{name} of float32", [getattr(elementary, name)(x.astype(np.float32))]
        yield f"{name} of float64", [getattr(np, name)(x)]
    for name, x in direct.items():
        yield f"{name} of float32", [getattr(np, name)(x.astype(np.float32))]
        yield f"{name} of float64", [getattr(np, name)(x)]
    single = wide.astype(np.float32), unit.astype(np.float32)
    yield "arctan2 of float32", [elementary.arctan2(*single), elementary.arctan2(single[0], 1.3)]
    yield "arctan2 of float64", [np.arctan2(wide, unit)]
    yield "hypot", [np.hypot(*single), np.hypot(wide, unit)]
    yield "power", [above.astype(np.float32) ** single[1], above**unit]
    yield (
        "sums",
        [above.sum(), single[0].sum(), above.std(), single[0][:200_000].reshape(400, 500).mean(0)],
    )
    for name in ("normal", "exponential"):
        yield f"random {name}", [getattr(elementary, name)(np.random.default_rng(3), 400_000)]
    shapes = numbers(100_000, 0.01, 4).astype(np.float32)
    yield "random gamma", [elementary.gamma(np.random.default_rng(3), shapes)]
    for mean in (0.3, 5.0, 3000.0):
        yield f"random poisson {mean}", [np.random.default_rng(3).poisson(mean, 100_000)]


def of_torch():
    """Values and slopes, with ends that fill no vector."""
    functions = {
        name: getattr(torch, name)
        for name in ("exp", "sin", "cos", "tanh", "erf", "sigmoid", "atan", "expm1")
    }
    functions |= {name: getattr(torch, name) for name in ("square", "abs")}
    functions |= {"softplus": formulas.softplus, "gelu": formulas.gelu, "ten to the power": lambda x: 10.0**x}
    functions |= {name: getattr(torch.nn.functional, name) for name in ("silu", "leaky_relu", "logsigmoid")}
    functions["softmax"] = lambda x: torch.softmax(x, 0)
    functions["log_softmax"] = lambda x: torch.log_softmax(x, 0)
    positive = {name: getattr(torch, name) for name in ("log", "log10", "log1p", "sqrt", "rsqrt")}
    for low, group in ((-6.0, functions), (1e-3, positive)):
        for name, function in group.items():
            inputs = [torch.from_numpy(numbers(length, low, 6.0)).float() for length in LENGTHS]
            yield f"torch {name}", [each for x in inputs for each in slopes(function, x)]
    x, y = (torch.from_numpy(numbers(3001, *ends)).float() for ends in ((-2, 2), (-1, 3)))
    yield "torch atan2", slopes(formulas.atan2, x, y)
    yield (
        "torch logaddexp and lgamma of float64",
        [torch.logaddexp(x.double(), y.double()), torch.lgamma(y.double())],
    )
    left = torch.from_numpy(numbers(60_000, -1, 1)).float().view(200, 300)
    yield "torch matmul", [left @ left.t()]
    yield "torch sums", [left.sum(), left.mean(dim=0), left.var(dim=1), left.norm(), left.cumsum(1)]
    for name in ("randn", "rand"):
        drawn = [getattr(torch, name)(n, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
        yield f"torch {name}", drawn


def train(name, folder):
    """Split one range and train one link; give the hashes of shards and of the checkpoint."""
    keys = (*CAMPAIGNS[name], *COMMON)
    here = folder / name
    here.mkdir(parents=True)
    options = [word for key in keys for word in ("--set", key)]
    files = [
        "--config",
        str(REPOSITORY / "config/config.yaml"),
        "--config",
        str(REPOSITORY / f"config/{name}.yaml"),
    ]
    number = "0000000" if name == "demo" else "0000001"
    link = f"{number}-{number}"
    for verb in (["tables"], ["list", link], ["stage", link], ["split", link], ["train", link]):
        words = [sys.executable, "-m", "crpipe", *files, *options, *verb]
        done = subprocess.run(words, check=False, cwd=here, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{verb}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    shards = sorted(here.rglob("results/*/shards/*/*.parquet"))
    yield f"{name}: shards", hashlib.sha256(b"".join(path.read_bytes() for path in shards)).hexdigest()[:16]
    (receipt,) = here.rglob(f"runs/*/ranges/{link}.json")
    yield f"{name}: checkpoint", json.loads(receipt.read_text())["sha256"][:16]


def main(folder):
    torch.set_num_threads(2)
    found = {name: digest(arrays) for name, arrays in (*of_numpy(), *of_torch())}
    found |= {
        f"fingerprint: {name}": str(value)
        for name, value in numerics(World(0, 1, torch.device("cpu"))).items()
    }
    for name in CAMPAIGNS:
        found |= dict(train(name, folder))
    sys.stdout.write(json.dumps({"library": os.confstr("CS_GNU_LIBC_VERSION"), "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
