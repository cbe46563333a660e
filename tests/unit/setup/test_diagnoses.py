import json

from crpipe.setup.doctor import as_table, failed_names, to_json
from crpipe.setup.machine import Diagnosis

FOUND = [Diagnosis("python", "ok", "3.11.7"), Diagnosis("runs", "fail", "word " * 40, "set runs: elsewhere")]


def test_each_line_has_its_verdict_and_the_fix_below_it():
    lines = as_table(FOUND).splitlines()
    assert lines[0] == "ok    python          3.11.7"
    assert lines[1].startswith("fail  runs            word word")
    assert lines[-1].strip() == "-> set runs: elsewhere"
    assert max(map(len, lines)) <= 110
    assert lines[2].startswith(" " * 22 + "word")


def test_fields_for_programs():
    assert json.loads(to_json(FOUND))["findings"][0] == {
        "name": "python",
        "verdict": "ok",
        "text": "3.11.7",
        "fix": "",
    }
    assert failed_names(FOUND) == ["runs"]
