"""Links in packs through the real command: the page, and a machine that has nothing but the pack."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from crpipe.core.paths import Paths
from runs import BIN, RANGES, REPOSITORY, Campaign, environment, follow
from s3_server import S3Server
from same_results import products

pytestmark = pytest.mark.timeout(900)
FIRST = RANGES[0]
PAGE = REPOSITORY / "docs" / "anywhere.md"
PATHS = Paths(Path("results"), Path("runs"), "tiny")


@pytest.fixture(scope="module")
def whole(split, tmp_path_factory):
    """The products of a campaign whose first link was trained beside its shards."""
    campaign = split.copy(tmp_path_factory.mktemp("whole") / "campaign")
    assert campaign.crpipe("train", FIRST).returncode == 0
    return products(campaign)


def test_the_commands_of_the_page_train_a_link(split, whole, tmp_path, monkeypatch):
    """The first block of docs/anywhere.md, its `bash` alone, with the name of a link of this campaign."""
    campaign = split.copy(tmp_path / "campaign")
    block = re.search(r"^```bash\n(crpipe pack .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    (campaign.folder / "crpipe.yaml").write_text((campaign.folder / "config" / "tiny.yaml").read_text())
    follow([("bash", block.replace("0000000-0000999", FIRST))], campaign.folder)
    assert products(campaign) == whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hide network and files")
def test_a_pack_needs_no_network_no_home_no_rights_and_no_campaign(split, whole, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    done = campaign.crpipe("pack", FIRST, "--out", "in.tar")
    assert done.returncode == 0, done.stderr
    with tempfile.TemporaryDirectory(prefix="crpipe-node-") as node:
        shutil.copy(campaign.folder / "in.tar", node)
        for path in (Path(node), Path(node, "in.tar")):
            os.chown(path, 65534, 65534)
        variables = {"PATH": environment({})["PATH"], "OMP_NUM_THREADS": "1"}
        hidden = f'mount -t tmpfs none {campaign.folder.parents[1]} && exec "$@"'
        words = ["unshare", "--net", "--mount", "sh", "-c", hidden, "sh"]
        words += ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        words += [BIN / "crpipe", "train", "--pack", "in.tar", "--out", "out.tar"]
        done = subprocess.run(words, cwd=node, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in Path(node).iterdir()) == ["in.tar", "out.tar"]
        done = campaign.crpipe("unpack", f"{node}/out.tar")
        assert done.returncode == 0, done.stderr
    assert products(campaign) == whole


def on_node(node, *, stop=False):
    """Run what HTCondor runs in a sandbox, where its pack is at the path that it has beside the campaign."""
    script = REPOSITORY / "workflow" / "scripts" / "on-node"
    variables = environment({"PATH": os.pathsep.join([str(BIN), "/usr/bin", "/bin"])})
    with subprocess.Popen([script], cwd=node, env=variables, stderr=subprocess.PIPE, text=True) as job:
        while stop and job.poll() is None and not list(node.rglob("config.json")):
            time.sleep(0.01)
        if stop:
            job.send_signal(signal.SIGTERM)
        _, said = job.communicate()
    return job.returncode, said


def test_the_script_of_a_node_passes_signals_and_exit_codes_on(split, whole, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    place = Path("runs/tiny/packs")
    nodes = [tmp_path / f"node-{number}" for number in range(2)]
    for node in nodes:
        (node / place).mkdir(parents=True)
        done = campaign.crpipe("pack", FIRST, "--out", node / place / f"{FIRST}.in.tar")
        assert done.returncode == 0, done.stderr
    code, said = on_node(nodes[0], stop=True)
    assert (code, (nodes[0] / "state.tar").exists()) == (85, True), said
    (nodes[0] / "state.tar").rename(nodes[1] / "state.tar")
    code, said = on_node(nodes[1])
    assert code == 0, said
    done = campaign.crpipe("unpack", nodes[1] / place / f"{FIRST}.out.tar")
    assert done.returncode == 0, done.stderr
    assert products(campaign) == whole


def test_the_script_of_a_node_splits_a_range(split, tmp_path):
    """A failure, too, ends with 0: its result is delivered, and unpack raises it."""
    campaign, node = split.copy(tmp_path / "campaign"), tmp_path / "node"
    (node / "results/packs/ranges").mkdir(parents=True)
    pack = node / "results/packs/ranges" / f"{FIRST}.in.tar"
    assert campaign.crpipe("pack", FIRST, "--data", "--out", pack).returncode == 0
    whole = pack.read_bytes()
    for content, exit_code in ((whole, 0), (whole[:-1000], 65)):
        pack.write_bytes(content)
        code, said = on_node(node)
        assert code == 0, said
        done = campaign.crpipe("unpack", pack.with_name(f"{FIRST}.out.tar"))
        assert done.returncode == exit_code, done.stderr


def test_a_campaign_in_packs_ends_in_the_same_bytes(begun, finished):
    """Every rule of packs, and again after a product is lost; nothing is left to do, and no pack is left."""
    configuration = begun.folder / "config" / "tiny.yaml"
    configuration.write_text(configuration.read_text() + "\npacks: true\n")
    begun.snakemake("--cores 2")
    assert products(begun) == products(finished)
    assert list(begun.folder.rglob("*.tar")) == []
    assert begun.jobs("--cores 2") == {}
    (begun.run / "ranges" / f"{FIRST}.json").unlink()
    begun.snakemake("--cores 2")
    assert products(begun) == products(finished)
    starts = [row for row in begun.journal() if (row["what"], row.get("verb")) == ("start", "train")]
    adopted = [row for row in starts if row["range"] == FIRST]
    assert len(adopted) == 2


@pytest.fixture
def apart(begun, tmp_path, monkeypatch):
    """A campaign whose jobs see a bucket, and no file of the workflow; each runs in an empty folder."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "name")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("Snakefile", "workflow"):  # what is deployed are files
        (begun.folder / name).unlink()
    shutil.copy(REPOSITORY / "Snakefile", begun.folder)
    shutil.copytree(REPOSITORY / "workflow", begun.folder / "workflow")
    (tmp_path / "nodes").mkdir()
    plugins = str(REPOSITORY / "tests" / "support" / "executors")
    with S3Server() as server:
        named = {"NODES": str(tmp_path / "nodes"), "AWS_ENDPOINT_URL": server.url, "PYTHONPATH": plugins}
        yield Campaign(begun.folder, named), server


APART = (
    "--executor nodes --cores 2 --jobs 2 --shared-fs-usage none --default-storage-provider s3 "
    "--default-storage-prefix s3://bucket/campaign"
)


def objects(server):
    return [each["Key"] for each in server.client.list_objects_v2(Bucket="bucket").get("Contents", [])]


def lose_node(nodes, server, lost):
    """Let the first training end its slice early, and kill all processes of its node in the next one."""
    done = {}
    while not lost.is_set():
        time.sleep(0.05)
        for node in nodes.glob("*.pid"):
            for process in trainings(int(node.read_text())):
                with suppress(psutil.NoSuchProcess):
                    folder = Path(process.cwd())
                    if done.get("stopped") is None and list(folder.rglob("snapshot-*.pt")):
                        done["stopped"] = process.pid
                        process.terminate()
                    elif done.get("stopped") not in (None, process.pid) and list(folder.rglob("config.json")):
                        os.killpg(int(node.read_text()), signal.SIGKILL)
                        lost.set()


def trainings(head):
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(head).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "train" in process.cmdline() and "--pack" in process.cmdline():
                    yield process


def test_jobs_that_share_nothing_but_a_bucket_end_in_the_same_bytes(apart, finished, tmp_path):
    """One slice ends early, and one node is lost: what was trained before is in the bucket."""
    campaign, server = apart
    done = campaign.snakemake(APART, check=False)
    assert done.returncode == 2
    assert "set packs: true" in done.stdout
    campaign.change(packs=True)
    lost = threading.Event()
    killer = threading.Thread(target=lose_node, args=(tmp_path / "nodes", server, lost))
    killer.start()
    try:
        campaign.snakemake(f"{APART} --retries 1 all outliers_consolidated")
        assert lost.is_set()
    finally:
        lost.set()
        killer.join()
    assert products(campaign) == products(finished)
    rows = [json.loads(line) for line in next(campaign.run.rglob("slices.jsonl")).read_text().splitlines()]
    assert [row["stopped"] == "" for row in rows] == [False, True]
    assert rows[1]["from_step"] == rows[0]["to_step"] > 0
    assert [name for name in objects(server) if "/packs/" in name] == []


def test_a_pack_in_a_bucket_that_holds_a_failure_is_made_again(apart):
    campaign, server = apart
    for name in RANGES:
        assert campaign.crpipe("simulate", name, "--out", f"raw/{name}").returncode == 0
    source = {"uri": f"{campaign.folder}/raw/{{range}}/*.parquet"}
    campaign.change(source=source, ranges={"last": "auto"}, train={"stop_loss": 1e-9}, packs=True)
    done = campaign.snakemake(f"{APART} {PATHS.receipt(FIRST)}", check=False)
    assert done.returncode == 1
    assert re.search(rf"train {FIRST} .*\(exit 76\): link {FIRST}, step \d+: ", done.stdout)
    assert f"campaign/runs/tiny/packs/{FIRST}.out.tar" in objects(server)
    for path in campaign.run.glob("store/*/diverged*"):
        path.unlink()
    campaign.change(train={"stop_loss": 1e9})
    (campaign.folder / "raw").rename(campaign.folder / "away")  # a training does not look at the source
    campaign.snakemake(f"{APART} {PATHS.receipt(FIRST)}")
    assert (campaign.folder / PATHS.receipt(FIRST)).exists()


def test_a_job_that_fails_on_a_node_is_reported_as_itself(begun):
    begun.change(train={"stop_loss": 1e-9})
    configuration = begun.folder / "config" / "tiny.yaml"
    configuration.write_text(configuration.read_text() + "\npacks: true\n")
    done = begun.snakemake("--cores 2 train_all", check=False)
    assert done.returncode == 1
    assert re.search(
        rf"train {FIRST} .*\(exit 76\): link {FIRST}, step \d+: .* \(train.stop_loss\)", done.stdout
    )
