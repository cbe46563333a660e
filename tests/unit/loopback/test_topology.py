from loopback.topology import Topology


def test_addresses_follow_from_the_ports_unless_given(tmp_path):
    here = Topology(1000, 2000)
    assert (here.host, here.issuer) == ("localhost:1000", "https://localhost:1000/issuer")
    assert (here.director, here.origin) == ("https://localhost:1000", "https://localhost:2000")
    elsewhere = Topology(1000, 2000, director="https://proxy:1")
    elsewhere.save(tmp_path)
    assert Topology.load(tmp_path) == elsewhere
