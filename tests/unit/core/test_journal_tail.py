import json
import os
import platform

from crpipe.core.journal import attempts, histories, may_live, metric_rows, tail

DEAD = {"host": platform.node(), "pid": 2**22 + 1}
ALIVE = {"host": platform.node(), "pid": os.getpid()}


def row(what, verb="split", **more):
    return {"time": 0.0, "what": what, "verb": verb, "range": "a", **DEAD, **more}


def test_tail_of_a_long_file_holds_whole_last_rows_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(1000)))
    rows = tail(path, 10 * len('{"n": 999}\n'))
    assert rows[-1] == {"n": 999}
    assert [item["n"] for item in rows] == list(range(1000 - len(rows), 1000))
    assert len(rows) == 10


def test_tail_of_a_short_file_is_all_of_it_and_a_cut_last_line_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n{"n":')
    assert tail(path, 1 << 20) == [{"n": 0}, {"n": 1}]
    assert tail(tmp_path / "none.jsonl", 10) == []


def test_an_attempt_of_a_dead_process_is_not_running():
    past = histories([row("start")])["a"]
    assert "split" in past.open
    assert not past.running("split")
    assert histories([row("start", **ALIVE)])["a"].running("split")


def test_a_process_on_another_host_is_believed_to_live():
    assert may_live({"host": "elsewhere", "pid": 1})


def test_a_later_success_clears_the_failure_and_attempts_add_up():
    failed = [row("start"), row("failed", error="no")]
    assert histories(failed)["a"].failed["split"]["error"] == "no"
    past = histories([*failed, row("start"), row("finished"), row("snapshot")])["a"]
    assert past.failed == {}
    assert past.attempts == {"split": 2}


def test_rows_of_another_form_are_left_out_as_those_that_a_crash_cut(tmp_path):
    good = row("start")
    wrong = [{**good, "verb": ["split"]}, {**good, "range": []}, {**good, "pid": "7"}, {**good, "what": None}]
    wrong.append({**good, "time": 10**400})
    lacking = [
        {name: value for name, value in good.items() if name != gone}
        for gone in ("what", "host", "pid", "time")
    ]
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (*wrong, good, *lacking)))
    assert attempts(path) == [good]
    assert not may_live({**good, "pid": 10**30})
    path = tmp_path / "rows.jsonl"
    path.write_text('[1]\n{"n": 1}\n7\nnull\n' + "[" * 100_000 + "\n")
    assert tail(path, 1 << 20) == [{"n": 1}]


def test_metrics_that_nobody_can_compute_with_are_left_out():
    good = {"range": "a", "range_step": 1, "range_steps": 2, "step": 1, "time": 0.5, "loss": float("nan")}
    wrong = [{**good, name: value} for name in ("step", "time", "loss") for value in ("1", None, [], 10**400)]
    lacking = [{name: value for name, value in good.items() if name != gone} for gone in ("step", "time")]
    assert metric_rows([*wrong, good, [1], *lacking, {**good, "time": float("inf")}]) == [good]
