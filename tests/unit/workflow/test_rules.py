"""What the rules ask for."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign_files import write_chain
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.records import BestReceipt, EvaluationRecord, Receipt
from crpipe.config.loading import load_config, read_tree
from crpipe.core.errors import ConfigError
from crpipe.core.paths import CONSOLIDATED
from crpipe.workflow.outdated import outdated
from crpipe.workflow.rules import (
    allocator_settings,
    check_files,
    crpipe_call,
    gpu_request,
    node_request,
    one_line,
    only_looks,
    overrides,
    parent_of,
    priority,
    reference_ranges,
    search_path,
    shards_of,
    staging_prerequisites,
    start_ranks,
    time_limit,
    training_call,
    training_priority,
    trains,
)
from named import READERS

NAMES = ["0000000-0000999", "0001000-0001999", "0002000-0002999"]


def campaign_of(*changes):
    keys = ("ranges.last=2999", f"source.reader={READERS['bundles']}", *changes)
    return Campaign.open(load_config((), keys))


def test_the_chain_is_the_ranges_in_order_and_then_the_outliers():
    campaign = campaign_of()
    assert list(campaign.ranges) == NAMES
    assert list(campaign.chain.names) == [*NAMES, "outliers"]
    assert shards_of(campaign, NAMES[1]) == [campaign.paths.shard_manifest(NAMES[1])]
    assert parent_of(campaign, NAMES[1]) == [campaign.paths.receipt(NAMES[0])]
    assert parent_of(campaign, NAMES[0]) == []
    assert shards_of(campaign, "outliers") == [campaign.paths.outlier_manifest("consolidated")]
    assert parent_of(campaign, "outliers") == [campaign.paths.receipt(NAMES[2])]


def test_a_link_trains_on_its_ranges_and_a_round_continues_from_the_one_before():
    campaign = campaign_of("train.ranges_per_link=2", "train.passes=2")
    paths = campaign.paths
    first, second = "0000000-0001999", "0002000-0002999"
    assert list(campaign.chain.names) == [first, second, f"{first}.2", f"{second}.2", "outliers"]
    assert shards_of(campaign, f"{first}.2") == [paths.shard_manifest(name) for name in NAMES[:2]]
    assert parent_of(campaign, f"{first}.2") == [paths.receipt(second)]


def test_another_name_is_refused_and_some_links_are_named():
    with pytest.raises(
        ConfigError, match=r"0009000-0009999: not a link of this campaign \(0000000-0000999, "
    ):
        shards_of(campaign_of(), "0009000-0009999")


def test_events_of_one_size_have_no_outliers_and_the_chain_ends_with_the_last_range():
    campaign = campaign_of()
    fixed = replace(campaign.layout, fixed=8)
    chain = campaign.config.chain(has_outliers=fixed.has_outliers())
    assert list(chain.names) == NAMES


def test_a_skipped_range_is_no_link():
    assert list(campaign_of("ranges.skip=[0001000-0001999]").ranges) == [NAMES[0], NAMES[2]]


def test_reference_ranges_are_needed_for_a_quantile_only():
    assert reference_ranges(campaign_of("split.reference_ranges=[0001000-0001999]")) == []
    assert reference_ranges(campaign_of("split.quantile=0.9")) == NAMES[:1]
    chosen = campaign_of("split.quantile=0.9", "split.reference_ranges=[0001000-0001999]")
    assert reference_ranges(chosen) == [NAMES[1]]


def test_side_tables_are_those_of_the_configuration():
    assert not campaign_of().has_tables
    assert campaign_of("source.tables={geometry: geometry.csv}").has_tables


FIRST, SECOND, THIRD = "0000000-0000999", "0001000-0001999", "0002000-0002999"


@pytest.fixture
def campaign(tmp_path):
    def load(*changes):
        places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
        reader = f"source.reader={READERS['bundles']}"
        keys = ("ranges.last=2999", "source.prefetch_ranges=1", reader, *places, *changes)
        return Campaign.open(load_config((), keys))

    return load


def test_what_follows_the_first_range_is_made_again_without_it(campaign):
    write_chain(campaign())
    assert outdated(campaign()) == []
    later = [campaign().paths.receipt(name) for name in (SECOND, THIRD, "outliers")]
    for change in ("ranges.first=1000", f"ranges.skip=[{FIRST}]"):
        assert outdated(campaign(change, "train.schedule.horizon_ranges=3")) == later


def test_an_evaluation_follows_from_the_checkpoint_that_evaluate_checkpoint_chooses(campaign):
    keys = ("train.monitor=loss", "train.validate_every=100")
    last, best = campaign(*keys), campaign(*keys, "evaluate.checkpoint=best")
    write_chain(last)
    row = Receipt.read(last.paths.receipt(FIRST))
    judged = last.paths.evaluation(FIRST) / "metrics.json"
    judged.parent.mkdir(parents=True)
    EvaluationRecord(checkpoint="b" * 64).write(judged)
    assert outdated(last) == outdated(best) == [judged]
    value = {"step": 1, "metric": "loss", "value": 0.5}
    BestReceipt(range=FIRST, key=row.key, checkpoint="best.pt", sha256="b" * 64, **value).write(
        best.paths.best_receipt(FIRST)
    )
    assert outdated(last) == [judged]
    assert outdated(best) == []


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ({"all"}, True),
        ({"train_all", "outliers_consolidated"}, True),
        ({"runs/x/ranges/outliers.json"}, True),
        ({"outliers_consolidated"}, False),
        ({"results/ledgers/0000000-0000999.json"}, False),
        ({"runs-of-others/x"}, False),
    ],
)
def test_training_is_asked_for_by_rule_or_by_file(targets, expected):
    assert trains(targets, Path("runs")) is expected


def test_a_file_of_a_link_or_range_that_is_not_there_is_refused(campaign):
    loaded = campaign()
    paths, name = loaded.paths, loaded.ranges[0]
    check_files(loaded, ["all", "report.html", str(paths.receipt(name)), str(paths.ledger(name))])
    for file, what in (
        (paths.receipt("0000000-0000007"), "link"),
        (paths.ledger("9000000-9000007"), "range"),
    ):
        with pytest.raises(ConfigError, match=f"not a {what} of this campaign"):
            check_files(loaded, [str(file)])
    apart = campaign("results=/data/0042000-0042999/results")
    check_files(apart, ["/data/0042000-0042999/results/tables.json"])


def test_a_range_waits_for_the_split_of_the_one_before_and_goes_one_beyond_the_link_in_training(campaign):
    paths = campaign().paths
    assert staging_prerequisites(campaign(), SECOND, training=False) == [paths.ledger(FIRST)]
    assert staging_prerequisites(campaign(), SECOND, training=True) == [paths.ledger(FIRST)]
    assert staging_prerequisites(campaign(), THIRD, training=False) == [paths.ledger(SECOND)]
    assert staging_prerequisites(campaign(), THIRD, training=True) == [
        paths.ledger(SECOND),
        paths.receipt(FIRST),
    ]


def test_look_ahead_says_how_many_ranges_go_ahead(campaign):
    further = campaign("source.prefetch_ranges=2")
    assert staging_prerequisites(further, SECOND, training=True) == []
    assert staging_prerequisites(further, THIRD, training=True) == [further.paths.ledger(FIRST)]


def test_the_ranges_of_one_link_wait_for_no_training_of_theirs(campaign):
    together = campaign("train.ranges_per_link=0", "train.passes=2", "train.schedule.decay_to=1")
    paths = together.paths
    assert staging_prerequisites(together, THIRD, training=True) == [paths.ledger(SECOND)]


@pytest.mark.parametrize("place", ["staged", "ledger"])
def test_what_was_staged_before_waits_for_nothing(campaign, place):
    path = getattr(campaign().paths, place)(SECOND)
    path.parent.mkdir(parents=True)
    path.touch()
    assert staging_prerequisites(campaign(), SECOND, training=True) == []


def test_a_reference_range_does_not_wait_for_a_split_that_needs_its_threshold(campaign):
    chosen = campaign("split.quantile=0.9", f"split.reference_ranges=[{THIRD}]")
    assert staging_prerequisites(chosen, THIRD, training=False) == []
    assert staging_prerequisites(chosen, SECOND, training=False) == [chosen.paths.ledger(FIRST)]


@st.composite
def campaigns(draw):
    """A campaign of random shape, nothing of which exists yet."""
    count = draw(st.integers(1, 9))
    names = [f"{number * 1000:07d}-{number * 1000 + 999:07d}" for number in range(count)]
    skipped = draw(st.lists(st.sampled_from(names), max_size=count - 1, unique=True))
    keys = [
        f"ranges.last={count * 1000 - 1}",
        f"ranges.skip=[{','.join(skipped)}]",
        f"train.ranges_per_link={draw(st.integers(0, 5))}",
        f"train.passes={draw(st.integers(1, 3))}",
        f"source.prefetch_ranges={draw(st.integers(1, 4))}",
        f"source.reader={READERS['bundles']}",
        "results=/nowhere/results",
        "runs=/nowhere/runs",
    ]
    if draw(st.booleans()):
        kept = [name for name in names if name not in skipped]
        chosen = draw(st.lists(st.sampled_from(kept), max_size=1))
        keys += ["split.quantile=0.9", f"split.reference_ranges=[{','.join(chosen)}]"]
    return Campaign.open(load_config((), keys))


def jobs_of(campaign, *, training):
    """Return the files that each job waits for, by the file that it makes; the rules' own inputs included."""
    paths, reference = campaign.paths, reference_ranges(campaign)
    jobs = {
        paths.staged(each): staging_prerequisites(campaign, each, training=training)
        for each in campaign.ranges
    }
    if reference:
        jobs[paths.threshold()] = [paths.staged(each) for each in reference]
    for each in campaign.ranges:
        jobs[paths.shard_manifest(each)] = [paths.staged(each), *([paths.threshold()] if reference else [])]
        jobs[paths.ledger(each)] = [paths.shard_manifest(each)]
        jobs[paths.outlier_manifest(each)] = [paths.ledger(each)]
    jobs[paths.outlier_manifest(CONSOLIDATED)] = [paths.outlier_manifest(each) for each in campaign.ranges]
    for link in campaign.chain.links if training else ():
        jobs[paths.receipt(link.name)] = [*shards_of(campaign, link.name), *parent_of(campaign, link.name)]
    return jobs


@settings(max_examples=150, deadline=None)
@given(campaigns(), st.booleans(), st.randoms(use_true_random=False))
def test_nothing_ever_waits_for_itself_and_staging_keeps_to_its_look_ahead(campaign, training, random):
    """Jobs end in any order that their inputs allow; all of them do in the end."""
    paths, chain = campaign.paths, campaign.chain
    ahead = campaign.config.source.prefetch_ranges
    free = set(reference_ranges(campaign))  # these go before all others
    places = {name: place for place, name in enumerate(campaign.ranges)}
    left, done = jobs_of(campaign, training=training), set()
    while left:
        ready = [made for made, needs in left.items() if done.issuperset(needs)]
        assert ready, f"these wait for each other: {sorted(map(str, left))}"
        made = random.choice(ready)
        done.add(made)
        del left[made]
        copied = [each for each in campaign.ranges if paths.staged(each) in done and each not in free]
        assert sum(paths.ledger(each) not in done for each in copied) <= ahead
        waiting = [link for link in chain.links if link.ranges and paths.receipt(link.name) not in done]
        if training and waiting and waiting[0].round == 1:
            last = places[waiting[0].ranges[-1]]
            assert all(places[each] <= last + ahead for each in copied)


def test_lower_ranges_are_ranked_first_and_training_above_all_of_them_together():
    ranges = (FIRST, SECOND, THIRD)
    ranks = [priority(ranges, name) for name in ranges]
    assert ranks == [3, 2, 1]
    assert priority(ranges, "0009000-0009999") == 0
    assert training_priority(ranges) > 3 * sum(ranks)


@pytest.mark.parametrize(
    ("count", "kind", "expected"),
    [(0, "", ""), (0, "a100", ""), (1, "", "gpu:1"), (4, "a100", "gpu:a100:4")],
)
def test_gpus_are_asked_for_by_type_where_one_is_named(count, kind, expected):
    assert gpu_request(count, kind) == expected


def test_one_node_asks_for_nothing_and_several_for_a_torchrun_each():
    assert node_request(1) == {}
    assert node_request(3) == {"mpi": "srun", "nodes": 3, "tasks": 3, "tasks_per_gpu": 0}


@pytest.mark.parametrize(("runtime", "minutes"), [(10, "9"), (50, "45"), (1440, "1435")])
def test_a_job_stops_five_minutes_early_or_after_nine_tenths_of_a_short_time(runtime, minutes):
    assert time_limit(runtime) == f"--max-minutes {minutes}"


@pytest.fixture
def mine(tmp_path):
    """A configuration file of a user."""
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 3\nsource: {prefetch_ranges: 2}\n")
    return path


@pytest.mark.parametrize("words", ["--lint", "--report=report.html", "--dag all", "-S", "--cores 1 --unlock"])
def test_calls_that_run_no_job_only_look(words):
    assert only_looks(words.split())


@pytest.mark.parametrize("words", ["", "all --cores 2", "--configfile report", "--config run=--lint"])
def test_calls_that_run_jobs_do_not_only_look(words):
    assert not only_looks(words.split())


def test_overrides_are_what_the_files_do_not_say(mine):
    config = {"seed": 3, "source": {"prefetch_ranges": 4, "attempts": 9}}
    assert overrides([mine], config) == ["source.prefetch_ranges=4", "source.attempts=9"]
    assert overrides([mine], read_tree([mine])[0]) == []
    assert overrides([mine], {"split": {"quantile": "null"}}) == ["split.quantile=null"]  # of Snakemake


@pytest.mark.parametrize(
    "value", ["", "a: b", "$(touch x)", "it's", ["0000000-0000999"], None, True, 1e-7, "x" * 5000, {}]
)
def test_a_value_comes_back_from_its_one_line(value):
    text = one_line(value)
    assert "\n" not in text
    assert yaml.safe_load(text) == value


def test_a_call_can_be_pasted_into_a_shell_whatever_its_values_are(mine):
    changes = overrides([mine], {"run": "night", "results": "$(touch x) a b'c"})
    words = shlex.split(crpipe_call([mine], changes))
    assert words[:3] == ["crpipe", "--config", str(mine)]
    settings = load_config([mine], words[4::2])
    assert (settings.run, settings.results, settings.seed) == ("night", "$(touch x) a b'c", 3)


@pytest.mark.parametrize(
    ("nodes", "processes", "start"),
    [
        (1, 1, "crpipe x"),
        (1, 4, "torchrun --standalone --nproc-per-node=4 -m crpipe x"),
        (2, 1, "srun --nodes=2 --ntasks=2 torchrun --nnodes=2 --nproc-per-node=1 "),
        (3, 2, "srun --nodes=3 --ntasks=3 torchrun --nnodes=3 --nproc-per-node=2 "),
    ],
)
def test_training_starts_its_processes_on_each_node(nodes, processes, start):
    call = training_call("crpipe x", nodes, processes)
    assert call.startswith(start)
    assert call.endswith("crpipe x")


def test_programs_beside_the_interpreter_come_first_and_once():
    assert search_path("/env/bin/python", ["/usr/bin", "/env/bin", "/bin"]) == "/env/bin:/usr/bin:/bin"


def test_segments_of_gpu_memory_grow_unless_a_person_says_otherwise():
    assert allocator_settings({"PATH": "/bin"}) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert allocator_settings({"PYTORCH_ALLOC_CONF": ""}) == {}
    assert allocator_settings({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}) == {}


def test_ranks_on_several_nodes_are_left_to_a_job_that_has_them(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    said = r"train\.nodes: 2 nodes .*crpipe run.*srun --nodes=2 .*--nproc-per-node=3 .*-m crpipe train 7"
    with pytest.raises(ConfigError, match=said):
        start_ranks(2, 3, "7")
    start_ranks(1, 1, "7")
    monkeypatch.setenv("WORLD_SIZE", "6")
    start_ranks(2, 3, "7")


def test_a_section_whose_keys_are_all_commented_out_is_no_override(tmp_path):
    path = tmp_path / "crpipe.yaml"
    path.write_text("seed: 2\nreader:\n  # option: 1\n")
    assert overrides([path], {"seed": 2, "reader": None}) == []
