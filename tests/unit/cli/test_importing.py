"""While libraries are imported nothing looks for garbage; afterwards something does again."""

import gc

import pytest

from crpipe.cli import importing


def test_garbage_is_collected_after_an_import_also_one_that_failed():
    gc.unfreeze()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
