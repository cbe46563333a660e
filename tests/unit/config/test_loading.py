import errno
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from crpipe.campaign.claims import refuse_changes
from crpipe.config.loading import NAMED, Config, fixed_keys, flatten, load_config, read_tree, validate
from crpipe.config.plugins import WRITTEN_AS, called_now
from crpipe.core.errors import ConfigError, MachineError
from crpipe.core.files import digest
from named import SIMULATOR

REPOSITORY = Path(__file__).parents[3]
WORKLOAD = "train: {workload: 'crpipe.workloads.muons:MuonGan'}"
MODEL = "train.workload=crpipe.workloads.muons:MuonGan"


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def leaves(model, prefix=""):
    """Yield (dotted name, field) of every key."""
    for name, info in model.model_fields.items():
        if info.exclude:
            continue  # nobody can set it
        if isinstance(info.default, BaseModel):
            yield from leaves(type(info.default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def test_every_key_has_a_meaning_and_a_scope():
    for name, info in leaves(Config):
        assert len(info.description) > 8, name
        assert info.json_schema_extra["scope"] in ("data", "train", "site"), name


def test_later_files_and_overrides_win_key_by_key(tmp_path):
    first = write(tmp_path, "first.yaml", "run: a\nsource: {prefetch_ranges: 3, attempts: 2}\n")
    second = write(tmp_path, "second.yaml", "source: {attempts: 9}\n")
    config = load_config([first, second], ["run=c", "train.passes_per_link=4"])
    assert (config.run, config.source.prefetch_ranges, config.source.attempts) == ("c", 3, 9)
    assert config.train.passes_per_link == 4
    assert config.split == Config().split


def test_a_section_whose_keys_are_all_commented_out_is_empty(tmp_path):
    path = write(tmp_path, "config.yaml", "source:\n  # attempts: 3\nresources:\n  stage:\nmodel:\n")
    assert load_config([path]) == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sorce: {}", "sorce: unknown key; did you mean source?"),
        ("split: {outlier_above: 1.5e4}", "YAML reads 1.5e4 as text: write 15000"),
        ("load: {batch_size: 1e3}", "YAML reads 1e3 as text: write 1000"),
        ("split: {histograms: {e: [0, 1, 5e1]}}", "split.histograms.e.2: '5e1': "),
        ("split: {histograms: {e: [0, 1, 5e1]}}", "YAML reads 5e1 as text: write 50"),
        ("train: {passes_per_link: 25e-1}", "YAML reads 25e-1 as text: write 2.5"),
        (
            "source: {prefetch_range: 2}",
            "source.prefetch_range: unknown key; did you mean source.prefetch_ranges?",
        ),
        ("resources: {train: {cpu: 2}}", "did you mean resources.train.cpus?"),
        (f"{WORKLOAD}\nmodel: {{hiden: 2}}", "model.hiden: unknown key; did you mean model.hidden?"),
        ("zzzzzz: 1", "zzzzzz: unknown key"),
        (
            "source: {prefetch_ranges: 0}",
            "source.prefetch_ranges: 0: input should be greater than or equal to 1",
        ),
        (
            "source: {on_bad_file: maybe}",
            "source.on_bad_file: 'maybe': input should be 'fail' or 'quarantine'",
        ),
        ("source: {max_files: yes}", "source.max_files: true and false are no numbers"),
        ("split: {max_rejected: true}", "split.max_rejected: true and false are no numbers"),
        ("ranges: {last: true, size: 1}", "ranges.last: true and false are no numbers"),
        ("split: {test_files: [true]}", "split.test_files: true and false are no numbers"),
        ("split: {histograms: {e: [no, 5, 3]}}", "split.histograms: true and false are no numbers"),
        (f"{WORKLOAD}\nmodel: {{hidden: true}}", "model.hidden: true and false are no numbers"),
        ("source: {reader: 'plain_reader:Plain'}\nreader: {block: yes}", "reader.block: true and false"),
        ("split: {test_files: f1}", "split.test_files: 'f1': expected a list; write [f1]"),
        ("source: {tables: [a]}", "source.tables: ['a']: expected names with values"),
        ("ranges: {last: Auto}", "ranges.last: 'Auto': input should be a valid integer, unable to parse"),
        ("ranges: {last: Auto}", "; or input should be 'auto'"),
        ("ranges: {skip: }", "ranges.skip: no value is written; write one, or remove the key"),
        ("load.batch_size: 5", "load.batch_size: unknown key; in a file write load: {batch_size: …}"),
        (f"seed: {2**63}", "seed: 9223372036854775808: input should be less than or equal to"),
        ("seed: many", "seed: 'many': input should be a valid integer"),
        ("source: pelican", "source: 'pelican'"),
        ("run: ../other", "run: '../other'"),
        (f"{WORKLOAD}\nmodel: {{hidden: 1}}", "model.hidden: 1: input should be greater than or equal to 4"),
        (
            "ranges: {last: 5}",
            "is not a whole number of ranges of 1000 (ranges.size); write ranges.last: 999",
        ),
        ("train: {epoch: 5}", "did you mean train.passes_per_link?"),
        ("run: my run", "run: 'my run': legal are letters, digits, . _ -, a letter or digit first"),
        ("run: 2026-11-01", "run: YAML reads 2026-11-01 as no text; put quotes around what is written"),
        ("run: 007", "run: YAML reads 7 as no text; put quotes around what is written"),
        (
            "run: a\ntrain: {}\nseed: 1\ntrain: {}",
            "line 4, column 1: train is written twice (first in line 2)",
        ),
        (
            "split: {quantile: 0.9, quantile: 0.8}",
            "quantile is written twice (first in line 1); write it once",
        ),
        (
            "ranges: {first: 0000000, last: 0001777}",
            "line 1, column 32: YAML reads 0001777 as 1023; write the number without 0",
        ),
        ("seed: 1:30", "line 1, column 7: YAML reads 1:30 as 90; write the number without 0 and :, or text"),
        ("source:\n\turi: a", "line 2, column 1: while scanning for the next token"),
        ("source:\n\turi: a", "; indent with spaces"),
        ('source:\n  uri: "/data\nrun: a', "; the quotation mark in line 2 is not closed"),
        ("ranges: {skip: [7]}", "ranges.skip"),
        ("train: {workload: nowhere:Nothing}", "train.workload: nowhere:Nothing: nowhere cannot be imported"),
        ("train: {workload: nowhere:Nothing}", "; is its package installed, or its folder in PYTHONPATH?"),
        ("train: {workload: crpipe.config.loading}", "expected module:Name, for example"),
        ("model: {hidden: 8}", "model: options are given (hidden), but train.workload is not set"),
        ("load: {budget_muons: 8}", "load.budget_muons: unknown key; it is now called load.max_items"),
        ("split: {shard_muons: 8}", "it is now called split.shard_items"),
        ("synthetic: {depths: 8}", "write simulator (the options)"),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_way_out(tmp_path, text, said):
    path = write(tmp_path, "mine.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    assert said in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("class Mine(", r"SyntaxError: '\(' was never closed \(wrong_0.py, line 1\)"),
        ("Mine = np.float32", r"NameError: name 'np' is not defined \(.*wrong_1.py, line 1\)"),
        (
            "from crpipe.author import Modell",
            r"ImportError: cannot import name 'Modell' .*wrong_2.py, line 1\)",
        ),
    ],
)
def test_a_mistake_in_a_module_is_not_called_a_missing_package(tmp_path, monkeypatch, request, line, cause):
    number = request.node.callspec.indices["line"]
    write(tmp_path, f"wrong_{number}.py", f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"wrong_{number} cannot be imported: {cause}$"):
        validate({"train": {"workload": f"wrong_{number}:Mine"}})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from crpipe.split.readers import Reader", "crpipe.campaign.readers"),
        ("import crpipe.source.simulated", "crpipe.campaign.simulators"),
        ("from crpipe.train.records.loggers import LoggedRun", "crpipe.train.metrics_log"),
    ],
)
def test_a_package_that_imports_a_module_by_its_old_name_is_told_the_new_one(tmp_path, monkeypatch, old, new):
    name = f"old_{new.rpartition('.')[2]}"
    write(tmp_path, f"{name}.py", f"{old}\nclass Mine: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=f"cannot be imported: .*{name}.py, line 1.*; it is now called {new}$"
    ):
        load_config([write(tmp_path, "mine.yaml", f"train: {{workload: {name}:Mine}}")])


@pytest.mark.parametrize(
    "text", ["sorce: {}", "source: {prefetch_ranges: 0}", "seed: many", f"{WORKLOAD}\nmodel: {{hidden: 1}}"]
)
def test_the_file_that_holds_the_wrong_key_is_named(tmp_path, text):
    good, bad = write(tmp_path, "good.yaml", "run: x\nseed: 2\n"), write(tmp_path, "bad.yaml", text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_config([good, bad])


def test_an_override_is_named_as_it_was_given():
    with pytest.raises(ConfigError, match="--set source.attempts=none: source.attempts"):
        load_config([], ["source.attempts=none"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run", "expected key.sub=value"),
        ("=3", "expected key.sub=value"),
        (".run=3", "--set .run=3: expected key.sub=value"),
        ("run=[1", "is not YAML"),
        ("ranges.first=2024-13-45", "is not YAML .*month"),
        ("run=" + "[" * 3000, "is not YAML"),
    ],
)
def test_an_override_that_cannot_be_read(text, said):
    with pytest.raises(ConfigError, match=said):
        load_config([], [text])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "run: ü".encode("utf-16"),
            "line 1: not in UTF-8; save it in UTF-8: iconv -f UTF-16 -t UTF-8",
        ),
        ("run: ü".encode("utf-16-le"), "line 1: not in UTF-8; save it in UTF-8: iconv -f UTF-16 -t UTF-8"),
        ("run: a".encode("utf-16-le"), "line 1: not in UTF-8; save it in UTF-8: iconv -f UTF-16 -t UTF-8"),
        (
            "a: 1\nrun: ü".encode("latin1"),
            "line 2: not in UTF-8; save it in UTF-8: iconv -f LATIN1",
        ),
        (b"a: 1\nrun: \x1b", r"line 2: remove the character '\x1b'"),
    ],
)
def test_a_file_that_is_not_utf8_is_named_with_what_converts_it(tmp_path, content, said):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: not valid YAML: {said}")):
        load_config([path])


def test_a_section_that_two_names_share_is_changed_under_one_of_them(tmp_path):
    path = write(tmp_path, "config.yaml", "resources: {stage: &a {cpus: 3}, split: *a}")
    resources = load_config([path], ["resources.stage.cpus=7"]).resources
    assert (resources.stage.cpus, resources.split.cpus) == (7, 3)


def test_a_later_section_without_keys_changes_nothing(tmp_path):
    files = [write(tmp_path, "a.yaml", "load: {batch_size: 5}\ntrain: {schedule: {restarts: 7}}")]
    files.append(write(tmp_path, "b.yaml", "load:\n  # batch_size: 9\ntrain:\n  schedule:\n"))
    config = load_config(files)
    assert (config.load.batch_size, config.train.schedule.restarts) == (5, 7)


def test_every_wrong_key_is_told_at_once(tmp_path):
    path = write(tmp_path, "config.yaml", "seed: many\nsorce: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "expected keys"),
        ("[]", "expected keys"),
        ("a: [", "not valid YAML"),
        ("reader: &a {x: *a}", "not valid YAML: line 1, column 9: found unconstructable recursive node"),
        ("source: {uri: *.parquet}", "; put quotes around a value that begins with"),
        ("load: !include load.yaml", "'!include'; --config takes several files, and text that begins"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        load_config([write(tmp_path, "config.yaml", text)])


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ETIMEDOUT])
def test_a_file_that_the_machine_cannot_read_is_no_wrong_configuration(tmp_path, monkeypatch, number):
    """It was: exit code 2 ended `--keep-trying`, with the advice to name another file."""
    path = write(tmp_path, "config.yaml", "run: a\n")

    def read_text(self, _):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(MachineError, match=r"config\.yaml.*run the same command again"):
        load_config([path])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_config([tmp_path / "nowhere.yaml"])


def test_numbers_may_come_as_text_as_the_workflow_hands_them_on():
    assert validate({"source": {"prefetch_ranges": "3"}}).source.prefetch_ranges == 3


def test_an_option_that_does_not_apply_is_refused_but_its_default_is_not():
    source = {"uri": "synthetic://", "simulator": SIMULATOR}
    default = validate({"source": source}).options("simulator")["spectral_index"]
    keys = {"spectrum": "gaisser_h3a", "spectral_index": default}
    made = validate({"source": source, "simulator": keys})
    assert made.options("simulator")["spectrum"] == "gaisser_h3a"
    with pytest.raises(ConfigError, match="spectral_index does not apply"):
        validate({"source": source, "simulator": {**keys, "spectral_index": default + 1}})


def test_a_simulator_shapes_the_shards_only_where_it_is_used():
    tree = {"source": {"uri": "/data/{range}/*", "simulator": SIMULATOR}}
    more = {**tree, "simulator": {"depths": 7}}
    assert validate(tree).data_keys() == validate(more).data_keys()
    tree, more = ({**each, "source": {**tree["source"], "uri": "synthetic://"}} for each in (tree, more))
    assert validate(tree).data_keys() != validate(more).data_keys()


def test_an_option_that_no_checkpoint_depends_on_is_no_key_of_the_training():
    base = ["train.workload=crpipe.workloads.direction:FlatTransformer"]
    once, often = load_config([], base), load_config([], [*base, "model.rotations=8"])
    assert (once.use_options(), often.use_options()) == ({"rotations": 1}, {"rotations": 8})
    assert once.train_keys() == often.train_keys()
    assert "model.width" in once.train_keys()
    assert once.train_keys() != load_config([], [*base, "model.width=64"]).train_keys()


def test_results_from_before_an_option_of_use_are_still_those_of_its_default():
    base = ["train.workload=crpipe.workloads.xec:Inpainter"]
    assert load_config([], base).use_options() == {"averages": True, "predict_mask": 0.05}
    hidden = load_config([], [*base, "model.predict_hidden={inner: 10}"])
    assert hidden.use_options()["predict_hidden"] == {"inner": 10}
    assert load_config([], ["train.workload=crpipe.workloads.xec:Regressor"]).use_options() == {}


BASE = load_config([], [MODEL])


def fingerprint(config):
    return digest(config.train_keys())


# Keys that mean something only together with others.
BESIDE = {
    "split.validation_files": ["split.validation_fraction=0"],
    "train.init_map": ["train.pretrained=other"],
    "train.monitor": ["train.validate_every=5"],
    "train.processes": ["train.gpus=0"],
    "train.start_after": ["train.pretrained=other"],
    "train.early_stopping_patience": ["train.validate_every=5", "train.monitor=critic/loss"],
    "train.schedule.plateau_after": ["train.validate_every=5", "train.monitor=critic/loss"],
}


def changed(name, info):
    """Find another legal value of a key, and a configuration that has it."""
    value = info.default
    candidates = [
        1,
        2,
        3,
        1999,
        1500.0,
        0.25,
        5000.0,
        0.5,
        True,
        False,
        "other",
        "other {in} {out}",
        (),
        ("0000000-0000999",),
        {"geometry": "file:///geometry.csv"},
        {"energy_gev": [0, 1, 5]},
    ]
    candidates += ["crpipe.workloads.muons:MuonVae", *getattr(info.annotation, "__args__", ())]
    for candidate in candidates:
        if candidate == value or isinstance(candidate, type):
            continue
        try:
            text = yaml.safe_dump(candidate, default_flow_style=True).strip()
            return load_config([], [MODEL, *BESIDE.get(name, ()), f"{name}={text}"])
        except (ConfigError, yaml.YAMLError):
            continue
    raise AssertionError(f"{name}: no other legal value found")


@pytest.mark.parametrize(
    ("name", "info"),
    [(n, i) for n, i in leaves(Config) if n not in (*NAMED, "ranges.size", "source.simulator")],
)
def test_a_changed_key_changes_what_its_scope_says(name, info):
    before, after = load_config([], [MODEL, *BESIDE.get(name, ())]), changed(name, info)
    scope = info.json_schema_extra["scope"]
    assert (before.data_keys() != after.data_keys()) == (scope == "data")
    if not name.startswith("ranges."):  # the number of ranges is the learning rate's campaign
        assert (fingerprint(before) != fingerprint(after)) == (scope in ("data", "train"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "[5, 3, 10]",
            r"split.histograms.x: the low end 5 is not below the high end 3; write \[low end, high",
        ),
        ("[3, 3, 10]", "is not below the high end 3"),
        ("[0, 1, 0]", r"split.histograms.x.2: 0: input should be greater than or equal to 1"),
        ("[0, 1, 10001]", "less than or equal to 10000"),
        ("[0, 1, 2.5]", "valid integer"),
        ("[0, .inf, 2]", "finite number"),
        ("[0, 1]", "split.histograms.x"),
    ],
)
def test_a_histogram_needs_two_ends_and_bins(value, message):
    with pytest.raises(ConfigError, match=message):
        load_config([], [f"split.histograms={{x: {value}}}"])


def test_processes_are_of_cpus_and_gpus_decide_their_own():
    on_cpus = load_config([], [MODEL, "train.gpus=0", "train.processes=3", "train.nodes=2"]).train
    assert (on_cpus.processes_of_node, on_cpus.ranks) == (3, 6)
    assert load_config([], [MODEL, "train.gpus=4"]).train.ranks == 4
    assert load_config([], [MODEL, "train.gpus=0"]).train.ranks == 1
    with pytest.raises(
        ConfigError, match=r"train.processes: 3 is for training on CPUs; .* set train.gpus: 0"
    ):
        load_config([], [MODEL, "train.processes=3"])


def test_histograms_are_keys_as_their_record_reads_back():
    keys = load_config([], ["split.histograms={x: [0, 1, 5]}"]).data_keys()
    assert json.loads(json.dumps(keys)) == keys
    assert "split.histograms" not in load_config([]).data_keys()  # campaigns from before there were any


def test_a_later_option_is_a_key_only_where_it_is_set():
    """Campaigns from before it keep their fingerprint."""
    root = "source.reader=crpipe.workloads.xec.reading.root:RootFiles"
    plain = load_config([], [root]).data_keys()
    assert "reader.fiducial" in plain
    assert not {"reader.sentinel", "reader.saturated"} & plain.keys()
    assert load_config([], [root, "reader.sentinel=[]", "reader.saturated=null"]).data_keys() == plain
    assert load_config([], [root, "reader.sentinel=-999"]).data_keys() == plain | {
        "reader.sentinel": [-999.0]
    }
    assert load_config([], [root, "reader.saturated=2500"]).data_keys() == plain | {
        "reader.saturated": 2500.0
    }


def test_an_infinite_option_stays_one_where_a_configuration_is_written():
    config = Config.model_validate({"model": {"cut": float("inf")}})
    assert config.model_dump(mode="json")["model"] == {"cut": float("inf")}


def test_options_of_the_workload_are_part_of_the_fingerprint():
    default = BASE.options()["hidden"]
    assert fingerprint(load_config([], [MODEL, f"model.hidden={default + 1}"])) != fingerprint(BASE)
    assert fingerprint(load_config([], [MODEL, f"model.hidden={default}"])) == fingerprint(BASE)


def test_skipping_a_range_in_mid_campaign_changes_no_fingerprint():
    whole = load_config([], ["ranges.last=9999"])
    part = load_config([], ["ranges.last=9999", "ranges.skip=[0003000-0003999]"])
    assert fingerprint(part) == fingerprint(whole)


def test_an_explicit_horizon_is_the_campaign_of_the_learning_rate():
    short, long = load_config([], ["ranges.last=9999"]), Config()
    assert fingerprint(short) != fingerprint(long)
    again = load_config([], ["ranges.last=9999", "train.schedule.horizon_ranges=100"])
    assert fingerprint(again) == fingerprint(long)


def test_a_campaign_of_automatic_length_needs_its_files_counted_first(tmp_path):
    config = load_config([], ["ranges.last=auto", f"results={tmp_path}"])
    with pytest.raises(ConfigError, match="run `crpipe count` first"):
        config.all_ranges()
    (tmp_path / "positions.json").write_text('{"files": 2500, "last": 2499, "source": ""}')
    assert [str(name) for name in config.all_ranges()][-1] == "0002000-0002499"


def test_ranges_of_the_campaign_leave_out_the_skipped():
    config = load_config([], ["ranges.last=2999", "ranges.skip=[0001000-0001999]"])
    assert [str(name) for name in config.all_ranges()] == ["0000000-0000999", "0002000-0002999"]


def test_changed_keys_are_listed_with_both_values():
    with pytest.raises(ConfigError) as caught:
        refuse_changes({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, "results", "do this")
    assert "b: results 2, config 3" in str(caught.value)
    assert "c: results None, config 4" in str(caught.value)
    assert str(caught.value).endswith("do this")
    refuse_changes({"a": 1}, {"a": 1}, "results", "")


def test_origin_of_every_leaf_is_known(tmp_path):
    first = write(tmp_path, "first.yaml", "source: {attempts: 2}\nrun: a\n")
    tree, origin = read_tree([first], ["run=b"])
    assert {name for name, _ in flatten(tree)} <= set(origin)
    assert origin["source.attempts"] == str(first)
    assert origin["run"] == "--set run=b"


def test_fresh_events_need_a_source_that_simulates():
    source = {"uri": "file:///data/{range}/*.parquet"}
    with pytest.raises(
        ConfigError, match=r"evaluate.fresh_groups: 100, but source.uri is file:.*set it to 0"
    ):
        validate({"source": source, "evaluate": {"fresh_groups": 100}}).check_fresh()


@pytest.mark.parametrize("name", ["config.yaml", "demo.yaml"])
def test_configurations_of_the_repository_are_legal(name):
    load_config([REPOSITORY / "config" / "config.yaml", REPOSITORY / "config" / name])


@pytest.mark.parametrize("key", ["results", "runs"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a\nb", r"the character '\n' cannot be part of this path (it breaks the lines of logs)"),
        ("a\x1b[2Jb", r"the character '\x1b' cannot be part"),
        ("a/{range}", "the character '{' cannot be part of this path (Snakemake reads it as a wildcard)"),
        ("a}", "the character '}' cannot be part"),
        (
            "100%",
            "the character '%' cannot be part of this path (Slurm replaces it in the names of its logs)",
        ),
        ("a\\b", "Slurm replaces it"),
        ("~/results", "~ is not replaced here; write the whole path"),
    ],
)
def test_a_directory_whose_name_would_be_changed_on_the_way_is_refused(key, path, said):
    with pytest.raises(ConfigError) as caught:
        validate({key: path}, {})
    assert str(caught.value).startswith(f"{key}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["a $(touch x) & `b`; 'c' \"d\" *", "/data/été/v2 (new), final", ".."])
def test_any_other_name_of_a_directory_is_taken(path):
    assert validate({"results": path, "runs": path}, {}).results == path


BRACES = [
    "source: {uri: /data/{range}/*.parquet}",
    "source:\n  uri: {range}/*.parquet\n",
    "source:\n  uri: {range}\n",
    "run: a\nsource: {files: 'a', uri: /b/{number:06}.x}",
    "source: {uri: /data/a,\n  files: /b/{range}.txt}",
]


@pytest.mark.parametrize("text", BRACES)
def test_braces_without_quotes_are_one_line_that_says_so(tmp_path, text):
    path = tmp_path / "crpipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match='put quotes around values with braces, as in uri: "') as caught:
        load_config([path])
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1
    assert "^" not in str(caught.value)
    value = text.partition("source: ")[2]
    if value:
        with pytest.raises(ConfigError, match="put quotes around values with braces"):
            load_config([], [f"source={value}"])


@pytest.mark.parametrize(
    "text", ["source:\n  uri: /d/{range}\nrun: [", "source: {uri: '/a/{range}', b", "run: }"]
)
def test_other_errors_of_yaml_say_nothing_of_braces(tmp_path, text):
    path = tmp_path / "crpipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"not valid YAML: line \d, column \d+: ") as caught:
        load_config([path])
    assert "quotes" not in str(caught.value)


@pytest.mark.parametrize(
    ("now", "before"), [each for each in WRITTEN_AS.items() if each[0] not in fixed_keys()]
)
def test_a_name_of_before_is_refused_with_the_new_one_in_files_and_overrides(tmp_path, now, before):
    section, name = before.split(".")
    file = write(tmp_path, "mine.yaml", f"{section}:\n  {name}: linear\n")
    for given in (([file],), ([], [f"{before}=linear"])):
        with pytest.raises(ConfigError, match=rf"{before}: .*; it is now called {now}$"):
            load_config(*given)


def test_a_key_that_cannot_be_set_any_more_says_so_by_both_names():
    for name in (*fixed_keys(), *map(WRITTEN_AS.get, {*fixed_keys()} & {*WRITTEN_AS})):
        with pytest.raises(ConfigError, match="unknown key; the value is .*; remove the key"):
            load_config([], [f"{name}=0.5"])


def test_a_merged_key_that_is_written_again_is_not_written_twice(tmp_path):
    text = "split: &b {shard_items: 8}\nmodel: {x: &m {<<: *b, shard_items: 2}, y: {<<: *m}}\n"
    tree, _ = read_tree([write(tmp_path, "mine.yaml", text)])
    assert tree["model"] == {"x": {"shard_items": 2}, "y": {"shard_items": 2}}


def test_only_a_quotation_mark_that_is_open_is_said_to_be(tmp_path):
    with pytest.raises(ConfigError, match="unknown escape character 'd'$"):
        load_config([write(tmp_path, "mine.yaml", 'source:\n  uri: "/data\\d/x"\n')])


def test_records_keep_the_names_of_before():
    """A run that was begun under them goes on; nothing else in a record has a new name."""
    watched = ["train.early_stopping_patience=2", "train.monitor=a/loss", "train.validate_every=5"]
    keys = load_config([REPOSITORY / "config" / "config.yaml"], watched).train_keys()
    assert not {*keys} & {*WRITTEN_AS}
    assert {"split.threshold", "load.batch_events", "train.epochs", "train.schedule"} < {*keys}
    assert {"train.warmup_steps", "train.validate_steps", "train.keep_best", "train.stop_after"} < {*keys}
    assert [called_now(name) for name in ("train.epochs", "seed")] == ["train.passes_per_link", "seed"]


def test_a_key_that_is_gone_is_refused_with_what_holds_in_its_place():
    with pytest.raises(ConfigError, match=r"unknown key; a loss beyond 0.3 of train.stop_loss"):
        load_config([], ["train.warn_loss=3"])
