import pytest

from crpipe.core.lease import Mount, mount_of

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
31 22 0:40 / {place} rw,noatime shared:1 - nfs4 server:/x rw,vers=4.2,local_lock=none
32 31 0:41 / {place}/tiefer\\040Ø rw,noatime - lustre 10.0.0.1@tcp:/fs rw,localflock,lazystatfs
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS.format(place=tmp_path / "data"))
    return path


@pytest.mark.parametrize(
    ("below", "kind"),
    [("other", "ext4"), ("data/a/b", "nfs4"), ("data/tiefer Ø/x", "lustre"), ("database", "ext4")],
)
def test_the_innermost_mount_counts_also_for_what_does_not_exist_yet(tmp_path, mounts, below, kind):
    (tmp_path / "data" / "tiefer Ø").mkdir(parents=True)
    assert mount_of(tmp_path / below, mounts).kind == kind


def test_the_place_of_this_test_is_known():
    assert mount_of(__import__("pathlib").Path(__file__)).kind


def test_where_the_kernel_lists_no_mounts_nothing_is_known(tmp_path):
    assert mount_of(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("kind", "options", "local"),
    [
        ("ext4", "rw", False),
        ("lustre", "rw,flock", False),
        ("lustre", "rw,localflock", True),
        ("lustre", "rw", True),
        ("nfs4", "rw,local_lock=none", False),
        ("nfs", "rw,local_lock=all", True),
        ("nfs", "rw,nolock", True),
        ("beegfs", "rw", True),
        ("fuse.sshfs", "rw", True),
    ],
)
def test_file_systems_whose_locks_may_hold_within_one_host(kind, options, local):
    assert Mount("/x", kind, tuple(options.split(","))).locks_are_per_host() is local


def test_the_options_about_locks_are_named():
    mount = Mount("/x", "nfs", ("rw", "vers=3", "local_lock=flock"))
    assert mount.describe() == "nfs at /x with local_lock=flock"
