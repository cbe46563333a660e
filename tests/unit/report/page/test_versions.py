from crpipe import __version__
from crpipe.report.page.versions import versions


def test_versions_name_crpipe_and_what_is_missing():
    found = dict(versions())
    assert found["crpipe"] == __version__
    assert set(found) >= {"Python", "torch", "numpy", "host"}
