from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from crpipe.config.loading import Config, flatten, load_config, read_tree, refuse_changes, validate
from crpipe.core.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def leaves(model, prefix=""):
    """Yield (dotted name, field) of every key."""
    for name, info in model.model_fields.items():
        if isinstance(info.default, BaseModel):
            yield from leaves(type(info.default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def test_every_key_has_a_meaning_and_a_scope():
    for name, info in leaves(Config):
        assert len(info.description) > 8, name
        assert info.json_schema_extra["scope"] in ("data", "train", "site"), name


def test_later_files_and_overrides_win_key_by_key(tmp_path):
    first = write(tmp_path, "first.yaml", "run: a\nsource: {look_ahead: 3, attempts: 2}\n")
    second = write(tmp_path, "second.yaml", "source: {attempts: 9}\n")
    config = load_config([first, second], ["run=c", "train.epochs=4"])
    assert (config.run, config.source.look_ahead, config.source.attempts) == ("c", 3, 9)
    assert config.train.epochs == 4
    assert config.split == Config().split


def test_a_section_whose_keys_are_all_commented_out_is_empty(tmp_path):
    path = write(tmp_path, "config.yaml", "source:\n  # attempts: 3\nresources:\n  stage:\nmodel:\n")
    assert load_config([path]) == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sorce: {}", "sorce: unknown key; did you mean source?"),
        ("source: {lookahead: 2}", "source.lookahead: unknown key; did you mean source.look_ahead?"),
        ("resources: {train: {cpu: 2}}", "did you mean resources.train.cpus?"),
        ("model: {hiden: 2}", "model.hiden: unknown key; did you mean model.hidden?"),
        ("zzzzzz: 1", "zzzzzz: unknown key"),
        ("source: {look_ahead: 0}", "source.look_ahead: 0: input should be greater than or equal to 1"),
        (
            "source: {on_bad_file: maybe}",
            "source.on_bad_file: 'maybe': input should be 'fail' or 'quarantine'",
        ),
        ("seed: many", "seed: 'many': input should be a valid integer"),
        ("source: pelican", "source: 'pelican'"),
        ("run: ../other", "run: '../other'"),
        ("model: {hidden: 1}", "model.hidden: 1: input should be greater than or equal to 4"),
        ("ranges: {last: 5}", "is not a whole number of steps of 1000; correct ranges.last"),
        ("ranges: {skip: [7]}", "ranges.skip"),
        ("train: {workload: nowhere:Nothing}", "train.workload: 'nowhere:Nothing' cannot be used"),
        ("train: {workload: crpipe.config.loading}", "expected module:Class"),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_way_out(tmp_path, text, said):
    path = write(tmp_path, "mine.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    assert said in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("text", ["sorce: {}", "source: {look_ahead: 0}", "seed: many", "model: {hidden: 1}"])
def test_the_file_that_holds_the_wrong_key_is_named(tmp_path, text):
    good, bad = write(tmp_path, "good.yaml", "run: x\nseed: 2\n"), write(tmp_path, "bad.yaml", text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_config([good, bad])


def test_an_override_is_named_as_it_was_given():
    with pytest.raises(ConfigError, match="--set source.attempts=none: source.attempts"):
        load_config([], ["source.attempts=none"])


@pytest.mark.parametrize(
    ("text", "said"),
    [("run", "expected key.sub=value"), ("=3", "expected key.sub=value"), ("run=[1", "is not YAML")],
)
def test_an_override_that_cannot_be_read(text, said):
    with pytest.raises(ConfigError, match=said):
        load_config([], [text])


def test_every_wrong_key_is_told_at_once(tmp_path):
    path = write(tmp_path, "config.yaml", "seed: many\nsorce: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(("text", "said"), [("- a\n", "expected keys"), ("a: [", "not valid YAML")])
def test_a_file_that_is_no_configuration(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        load_config([write(tmp_path, "config.yaml", text)])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_config([tmp_path / "nowhere.yaml"])


def test_numbers_may_come_as_text_as_the_workflow_hands_them_on():
    assert validate({"source": {"look_ahead": "3"}}).source.look_ahead == 3


def test_a_key_that_does_not_apply_is_refused_but_its_default_is_not():
    default = Config().synthetic.spectral_index
    keys = {"spectrum": "gaisser_h3a", "spectral_index": default}
    assert validate({"synthetic": keys}).synthetic.spectrum == "gaisser_h3a"
    with pytest.raises(ConfigError, match="spectral_index does not apply"):
        validate({"synthetic": {**keys, "spectral_index": default + 1}})


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
        (),
        ("0000000-0000999",),
        (1, 1, 1, 1, 2),
    ]
    candidates += ["crpipe.workloads.muons.options:MuonGan", *getattr(info.annotation, "__args__", ())]
    for candidate in candidates:
        if candidate == value or isinstance(candidate, type):
            continue
        try:
            return load_config([], [f"{name}={yaml.safe_dump(candidate, default_flow_style=True).strip()}"])
        except (ConfigError, yaml.YAMLError):
            continue
    raise AssertionError(f"{name}: no other legal value found")


@pytest.mark.parametrize(
    ("name", "info"), [(n, i) for n, i in leaves(Config) if n not in ("model", "ranges.step")]
)
def test_a_changed_key_changes_what_its_scope_says(name, info):
    before, after = Config(), changed(name, info)
    scope = info.json_schema_extra["scope"]
    assert (before.data_keys() != after.data_keys()) == (scope == "data")
    if not name.startswith("ranges."):  # the number of ranges is the learning rate's campaign
        assert (before.fingerprint() != after.fingerprint()) == (scope in ("data", "train"))


def test_options_of_the_workload_are_part_of_the_fingerprint():
    default = Config().options().hidden
    assert load_config([], [f"model.hidden={default + 1}"]).fingerprint() != Config().fingerprint()
    assert load_config([], [f"model.hidden={default}"]).fingerprint() == Config().fingerprint()


def test_skipping_a_range_in_mid_campaign_changes_no_fingerprint():
    whole = load_config([], ["ranges.last=9999"])
    assert (
        load_config([], ["ranges.last=9999", "ranges.skip=[0003000-0003999]"]).fingerprint()
        == whole.fingerprint()
    )


def test_an_explicit_horizon_is_the_campaign_of_the_learning_rate():
    short, long = load_config([], ["ranges.last=9999"]), Config()
    assert short.fingerprint() != long.fingerprint()
    assert (
        load_config([], ["ranges.last=9999", "train.horizon_ranges=100"]).fingerprint() == long.fingerprint()
    )


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


@pytest.mark.parametrize("name", ["config.yaml", "demo.yaml"])
def test_configurations_of_the_repository_are_legal(name):
    config = load_config([REPOSITORY / "config" / "config.yaml", REPOSITORY / "config" / name])
    assert (config == Config()) == (name == "config.yaml")
