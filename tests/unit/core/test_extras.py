"""Optional libraries: what a person reads when one is missing."""

import pytest

from crpipe.core.errors import MissingExtra, require


def test_an_installed_library_is_imported():
    assert require("json.decoder", extra="none", why="to read").JSONDecoder().decode("1") == 1


@pytest.mark.parametrize("module", ["no_such_library", "no_such_library.inner"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(module):
    with pytest.raises(MissingExtra) as raised:
        require(module, extra="hdf5", why="to read HDF5 files")
    assert str(raised.value) == (
        "no_such_library is needed to read HDF5 files and is not installed; "
        "install it with pip install 'crpipe[hdf5]'"
    )


def test_an_installed_library_that_lacks_something_of_its_own_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        require("broken_library", extra="none", why="to fail")
