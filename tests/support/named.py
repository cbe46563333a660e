"""Names of what ships with crpipe, for configurations in tests."""

PARQUET = "crpipe.workloads.muons.reading.parquet"
READERS = {
    "bundles": f"{PARQUET}:Bundles",
    "bundles_depth_time": f"{PARQUET}:BundlesDepthTime",
    "bundles_time_depth": f"{PARQUET}:BundlesTimeDepth",
    "bundles_ids": f"{PARQUET}:BundlesIds",
    "bundles_ids_muons": f"{PARQUET}:BundlesIdsMuons",
    "bundles_converted": f"{PARQUET}:BundlesConverted",
    "bundles_hdf5": "crpipe.workloads.muons.reading.hdf5:BundlesHdf5",
}
SIMULATOR = "crpipe.workloads.muons.simulator.files:AirShowers"
SOURCE = {"uri": "synthetic://", "reader": READERS["bundles"], "simulator": SIMULATOR}
NAMED = {"source": SOURCE, "train": {"workload": "crpipe.workloads.muons:MuonGan"}}
