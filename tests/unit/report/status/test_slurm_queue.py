"""The jobs of this directory in Slurm's queue."""

from crpipe.report.status.slurm_queue import jobs_here, read_queue

ANSWER = """\
7|RUNNING|n1|None|rule_train_wildcards_0000000-0000999|crpipe_a|{here}
8|PENDING||Priority|rule_outliers_consolidated|crpipe_a|{here}
9|RUNNING|n1|None|rule_train_wildcards_0000000-0000999|crpipe_b|{here}/elsewhere
10|RUNNING|n2|None|(null)|head|{here}
"""


def test_jobs_of_this_directory_are_named_with_their_node_or_what_they_wait_for(tmp_path):
    running, pending = read_queue(ANSWER.format(here=tmp_path), str(tmp_path.resolve()))
    assert (running.work, running.state, running.where) == ("train 0000000-0000999", "running", "n1")
    assert (pending.work, pending.state, pending.where) == ("outliers_consolidated", "pending", "Priority")


def test_a_campaign_without_slurm_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert jobs_here() == ()
