"""Judge generated muon bundles by files alone: features, classifier and errors of its own, nothing of crpipe.

    python judge.py pick SIMULATED.parquet ... TRUTH.parquet       one event of each shower
    python judge.py judge TRUTH.parquet GIVEN.parquet OWN.parquet  generated with true and own multiplicities

Needs numpy, pyarrow and scikit-learn. Errors are those of independent showers; AUCs are cross-fitted.
"""

import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

SPECTRUM = 10.0 ** np.arange(-1.0, 6.01, 0.5)  # GeV
LARGE = ("largest log E", "correlation", "width of log E", "mean log r", "least log r")


class Bundles:
    """The events of a file."""

    def __init__(self, path):
        table = pq.read_table(path).combine_chunks()
        primaries = np.stack(table["primary"].to_numpy(zero_copy_only=False)).astype(np.float64)
        self.log_e0, self.primaries = np.log10(primaries[:, 0]), primaries
        muons = table["muons"].chunk(0)
        self.count = np.diff(muons.offsets.to_numpy())
        values = muons.flatten().flatten().to_numpy().reshape(-1, 3)
        self.energy, self.x, self.y = values.T.astype(np.float64)
        self.event = np.repeat(np.arange(len(self.count)), self.count)
        self.features = self.summary()

    def mean(self, values):
        """Average over the muons of each event: [N]."""
        return np.bincount(self.event, values, len(self.count)) / np.maximum(self.count, 1)

    def extreme(self, which, values):
        """Reduce the muons of each event by a ufunc: [N]; 0 without muons."""
        result, first = np.zeros(len(self.count)), np.cumsum(self.count) - self.count
        result[self.count > 0] = which.reduceat(values, first[self.count > 0])
        return result

    def summary(self):
        """Describe each bundle by numbers [N] with their names."""
        radius = np.hypot(self.x, self.y)
        logs = {"log E": np.log10(self.energy), "log r": np.log10(radius + 0.01)}
        found = {f"mean {name}": self.mean(log) for name, log in logs.items()}
        off = {name: log - found[f"mean {name}"][self.event] for name, log in logs.items()}
        for name, log in logs.items():
            found[f"width of {name}"] = width = np.sqrt(self.mean(off[name] ** 2))
            found[f"skewness of {name}"] = self.mean(off[name] ** 3) / np.maximum(width, 1e-6) ** 3
            found[f"largest {name}"] = self.extreme(np.maximum, log)
            found[f"least {name}"] = self.extreme(np.minimum, log)
        widths = found["width of log E"] * found["width of log r"]
        found["correlation"] = self.mean(off["log E"] * off["log r"]) / np.maximum(widths, 1e-9)
        found["centre"] = np.hypot(self.mean(self.x), self.mean(self.y))
        found["mean r"], energy = self.mean(radius), np.maximum(self.mean(self.energy), 1e-3)
        found["log of the mean E"] = np.log10(energy)
        found["r weighted by E"] = self.mean(self.energy * radius) / energy
        is_leading = logs["log E"] == found["largest log E"][self.event]
        found["log r of the leading muon"] = self.mean(logs["log r"] * is_leading) * self.count
        found["near"], found["hard"] = self.mean(radius < 1), self.mean(self.energy > 1e3)
        return found | {"log N": np.log10(self.count + 0.5)}


def auc(truth, other, fewest, names):
    """Cross-fit a classifier in two halves of the showers; return AUC and its error."""
    is_left = np.random.default_rng(3).random(len(truth.count)) < 0.5
    rows, label, left = [], [], []
    for number, each in enumerate((truth, other)):
        columns = [each.log_e0, *each.primaries[:, 1:].T, *(each.features[name] for name in names)]
        chosen = each.count >= fewest
        rows.append(np.column_stack(columns)[chosen].round(4))
        label.append(np.full(chosen.sum(), number))
        left.append(is_left[chosen])
    rows, label, left = (np.concatenate(each) for each in (rows, label, left))
    found = []
    for training in (left, ~left):
        trees = HistGradientBoostingClassifier(
            max_iter=200, learning_rate=0.05, min_samples_leaf=40, random_state=0
        )
        trees.fit(rows[training], label[training])
        found.append(roc_auc_score(label[~training], trees.predict_proba(rows[~training])[:, 1]))
    return np.mean(found), np.sqrt(1 / (3 * len(label)))


def ratio(true, other):
    """Compare the sums of two numbers of the same showers: their ratio and its error."""
    total = max(true.sum(), 1e-9)
    value = other.sum() / total
    return value, np.sqrt(((other - value * true) ** 2).sum()) / total


def judge(truth, given, own):
    """Yield what a referee asks for, line by line."""
    names = [*truth.features]
    yield written("AUC, true multiplicities, N >= 3", *auc(truth, given, 3, names))
    yield written("AUC, own multiplicities, N >= 1", *auc(truth, own, 1, names))
    yield written("AUC of multiplicities", *auc(truth, own, 0, ["log N"]))
    large = truth.count >= 1000
    for name in LARGE:
        true, off = (each.features[name][large] for each in (truth, given))
        yield written(f"N >= 1,000, {name}, generated - true", *ratio(np.ones(len(true)), off - true))
        yield f"  scatter from event to event, generated / true: {off.std() / true.std():.3f}"
    decade, bins = np.floor(truth.log_e0).astype(int), []
    for number in np.unique(decade):
        mine = decade == number
        true, off = truth.count[mine], own.count[mine]
        yield written(
            f"E0 from 1e{number} GeV, P(no muon)", *ratio(np.ones(len(true)), (off == 0) * 1.0 - (true == 0))
        )
        yield written("  multiplicity, generated / true", *ratio(true, off))
        for low, high in pairwise(SPECTRUM):
            counts = [
                each.mean((each.energy >= low) & (each.energy < high)) * each.count for each in (truth, own)
            ]
            value, error = ratio(*(count[mine] for count in counts))
            if value:
                bins.append((abs(value - 1), value, error, f"E0 from 1e{number}, E from {low:.2g} GeV"))
    sharp = sorted((each for each in bins if each[2] < 0.05), reverse=True)
    beyond = sum(each[0] > 0.1 for each in sharp)
    yield f"spectrum: of {len(sharp)} bins with errors below 5 %, {beyond} are off by 10 %; the worst:"
    yield from (written(f"  {name}", value, error) for _, value, error, name in sharp[:6])
    yield "with larger errors: " + "; ".join(each[3] for each in bins if each[2] >= 0.05)


def written(name, value, error):
    """Write a number with its error."""
    return f"{name}: {value:.4f} +- {error:.4f}"


def pick(paths, out):
    """Write one event of each shower, at random."""
    rng, chosen = np.random.default_rng(7), []
    for table in map(pq.read_table, paths):
        ids = np.stack([table[f"primary_{part}_id"].to_numpy() for part in ("major", "minor")], axis=1)
        order = rng.permutation(len(ids))
        chosen.append(table.take(np.sort(order[np.unique(ids[order], axis=0, return_index=True)[1]])))
    pq.write_table(pa.concat_tables(chosen), out)


if __name__ == "__main__":
    if sys.argv[1] == "pick":
        pick(sys.argv[2:-1], sys.argv[-1])
    else:
        print(*judge(*map(Bundles, sys.argv[2:])), sep="\n")  # noqa: T201 - a script
