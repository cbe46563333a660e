def test_export_gives_back_every_event_in_the_input_schema(config, tmp_path):
    paths = config.paths()
    out = tmp_path / "out"
    assert export_shards([paths.shards(NAME), paths.outliers(NAME)], out, Silent()) == len(MULTIPLICITY)
    read = [concatenate(list(READERS["bundles"].rows(path))) for path in sorted(out.iterdir())]
    events = concatenate(read)
    columns, multiplicity, items = make_events(MULTIPLICITY)
    assert sorted(events.multiplicity) == sorted(multiplicity)
    order = np.lexsort(events.items.T)
    assert np.array_equal(events.items[order], items[np.lexsort(items.T)])
    assert set(events.columns["energy_gev"]) == set(columns["energy_gev"])
