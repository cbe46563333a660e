import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate


@pytest.mark.parametrize("last", [3, "auto"])
def test_a_run_is_finished_when_every_link_has_its_receipt(tmp_path, last):
    places = {"results": str(tmp_path / "results"), "runs": str(tmp_path / "runs")}
    config = validate({**places, "ranges": {"last": last, "step": 2}})

    def is_finished():
        return Campaign.open(config, layout="recorded").is_finished()

    paths = config.paths()
    for name in ("0000000-0000001", "0000002-0000003", "outliers"):
        assert not is_finished()
        paths.receipt(name).parent.mkdir(parents=True, exist_ok=True)
        paths.receipt(name).write_text("{}")
    assert is_finished() is (last == 3)  # whose files nobody has counted, it may go on
