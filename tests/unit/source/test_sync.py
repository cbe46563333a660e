import pytest

from crpipe.cli.jobs.source import sync_job
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError
from crpipe.core.progress import Silent
from crpipe.source.sync import sync_run
from told import Told


@pytest.fixture
def run(tmp_path):
    """A run with event files, a checkpoint, and things that stay where they are."""
    config = validate(
        {
            "run": "deep",
            "runs": str(tmp_path / "runs"),
            "sync": {"to": str(tmp_path / "second")},
            "source": {"attempts": 1},
        }
    )
    root = config.paths().run_dir()
    for name in (
        "tensorboard/a/events.1",
        "store/r/checkpoint-k.pt",
        "store/r/snapshot-k-7.pt",
        "store/r/lease",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return config


def test_event_files_and_checkpoints_arrive_snapshots_stay(run, tmp_path):
    assert sync_run(sync_job(run), Silent()) == 0
    second = tmp_path / "second"
    arrived = {str(path.relative_to(second)) for path in second.rglob("*") if path.is_file()}
    assert arrived == {"deep/tensorboard/a/events.1", "deep/store/r/checkpoint-k.pt"}
    assert (tmp_path / "second/deep/tensorboard/a/events.1").read_text() == "tensorboard/a/events.1"


def test_only_what_changed_is_sent_again(run):
    sync_run(sync_job(run), Silent())
    told = Told()
    sync_run(sync_job(run), told)
    assert told.lines[-1].endswith(": 0 files sent, 0 failed")
    (run.paths().tensorboard() / "a" / "events.1").write_text("grown longer than it was")
    sync_run(sync_job(run), told)
    assert told.lines[-1].endswith(": 1 files sent, 0 failed")


def test_another_place_gets_everything(run, tmp_path):
    sync_run(sync_job(run), Silent())
    moved = run.model_copy(update={"sync": run.sync.model_copy(update={"to": str(tmp_path / "third")})})
    told = Told()
    sync_run(sync_job(moved), told)
    assert told.lines[-1].endswith(": 2 files sent, 0 failed")


def test_a_failure_is_a_warning_and_is_made_up_for(run, tmp_path):
    (tmp_path / "second").write_text("a file where a directory is needed")
    told = Told()
    assert sync_run(sync_job(run), told) == 2
    assert any(line.startswith("warning: store/r/checkpoint-k.pt was not synced") for line in told.lines)
    (tmp_path / "second").unlink()
    assert sync_run(sync_job(run), told) == 0


def test_an_empty_place_is_an_error(run):
    with pytest.raises(ConfigError, match=r"sync\.to: empty"):
        sync_run(sync_job(run.model_copy(update={"sync": run.sync.model_copy(update={"to": ""})})), Silent())
