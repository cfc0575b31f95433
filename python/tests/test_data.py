"""Samples in shards, and streams of them."""
import decimal
import functools
import http.server
import threading

import numpy as np
import pytest
import tessera
from tessera import data

COLUMNS = {"a": "ndarray", "b": "ndarray:float32", "c": "ndarray:uint16:3", "d": "int", "e": "float32", "f": "str", "g": "json",
           "h": "bytes", "i": "str_int", "j": "str_decimal", "k": "png", "l": "uint8"}


def sample(i):
    return {"a": np.arange(i + 1, dtype=np.int32), "b": np.full((2, i + 1), i, np.float32), "c": tessera.tensor([i, 1, 2], dtype="uint16"),
            "d": i, "e": i / 2, "f": "ü" * i, "g": {"i": [i, None]}, "h": bytes([i, 0]), "i": 3**50, "j": decimal.Decimal("0.1"),
            "k": b"\x89PNG\r\n\x1a\n" + bytes([i]), "l": i}


def same(got, wanted):
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        if name in "abc":
            np.testing.assert_array_equal(got[name].numpy(), np.asarray(value))
        else:
            assert got[name] == value and type(got[name]) is type(value), name


def write(folder, ids, **options):
    with data.MdsWriter(folder, {"v": "int"}, **options) as writer:
        for i in ids:
            writer.write({"v": i})
    return str(folder)


def values(samples, most=10**9):
    return [s["v"] for _, s in zip(range(most), samples)]


@pytest.mark.parametrize("compression", [None, "zstd:7"])
def test_every_encoding_round_trips(tmp_path, compression):
    with data.MdsWriter(tmp_path / "d", COLUMNS, compression=compression, hashes=["sha1", "xxh64"], size_limit="2kb") as writer:
        for i in range(20):
            writer.write(sample(i))
    reader = data.MdsReader(tmp_path / "d")
    assert len(reader) == 20 and reader.columns == COLUMNS
    for i, got in enumerate(reader):
        same(got, sample(i))
    same(reader[-1], sample(19))
    reader.verify()
    with pytest.raises(IndexError):
        reader[20]


def test_bad_samples_and_folders(tmp_path):
    with pytest.raises(tessera.Error, match="pickle"):
        data.MdsWriter(tmp_path / "p", {"x": "pkl"})
    with pytest.raises(ZeroDivisionError), data.MdsWriter(tmp_path / "d", {"v": "int"}) as writer:
        writer.write({"v": 1})
        with pytest.raises(tessera.Error, match="more than the columns"):
            writer.write({"v": 1, "w": b""})
        1 / 0
    assert not (tmp_path / "d").exists()
    with pytest.raises(tessera.FileError, match="d"):
        data.MdsReader(tmp_path / "d")
    folder = write(tmp_path / "e", range(3))
    with pytest.raises(tessera.Error, match="more than one of"):
        data.StreamingDataset(data.Stream(folder, repeat=1, choose=2))
    with pytest.raises(tessera.Error, match="unknown shuffle"):
        data.StreamingDataset(folder, shuffle=True, shuffle_algo="py3")
    with pytest.raises(tessera.Error, match="neither balanced nor fixed"):
        data.StreamingDataset(folder, sampling_method="x")
    with pytest.raises(tessera.Error, match="a state without sample_in_epoch"):
        data.StreamingDataset(folder).load_state_dict({"epoch": 0, "num_canonical_nodes": 1, "shuffle_seed": 1})


def test_a_loop_is_an_epoch(tmp_path):
    dataset = data.StreamingDataset(write(tmp_path / "d", range(50), size_limit=100), shuffle=True)
    epochs = [values(dataset) for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]
    assert len(dataset) == dataset.size == dataset.epoch_size == 50
    assert values(data.StreamingDataset(tmp_path / "d")) == list(range(50))  # unshuffled


def test_streams_mix_and_a_run_goes_on_with_other_ranks(tmp_path):
    streams = [data.Stream(write(tmp_path / "a", range(60)), proportion=0.75),
               data.Stream(write(tmp_path / "b", range(60, 100)), proportion=0.25)]
    make = functools.partial(data.StreamingDataset, streams, shuffle=True, epoch_size=96, num_canonical_nodes=2)
    whole = make(batch_size=12)
    assert whole.chosen == [72, 24] and whole.size == 100
    wanted = values(whole)
    one = [make(batch_size=6, rank=rank, ranks_per_node=2) for rank in range(2)]
    first = [values(dataset, 18) for dataset in one]  # three batches
    state = one[0].state_dict()
    assert state == {"epoch": 0, "sample_in_epoch": 36, "num_canonical_nodes": 2, "shuffle_seed": 9176, "initial_physical_nodes": 1}
    rest = []
    for rank in range(3):
        other = make(batch_size=4, rank=rank, ranks_per_node=3, shuffle_seed=1)
        other.load_state_dict(state)
        rest.append(values(other))
        assert len(other) == 32
    for batch in range(8):
        if batch < 3:
            got = [v for rank in first for v in rank[6 * batch:6 * batch + 6]]
        else:
            got = [v for rank in rest for v in rank[4 * (batch - 3):4 * (batch - 3) + 4]]
        assert sorted(got) == sorted(wanted[12 * batch:12 * batch + 12]), batch


def test_a_server_is_read_and_its_shards_are_kept(tmp_path):
    write(tmp_path / "d", range(40), compression="zstd", hashes=["xxh64"], size_limit=150)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/d"
    options = {"cache": tmp_path / "cache", "download_retry": 0}
    assert values(data.MdsReader(address, **options)) == list(range(40))
    dataset = data.StreamingDataset(address, shuffle=True, **options)
    server.shutdown()
    server.server_close()
    assert sorted(values(dataset)) == list(range(40))  # all of it is here by now
    with pytest.raises(tessera.FileError, match="Failed to connect") as e:
        data.MdsReader(address, **options)
    assert "\n" not in str(e.value)
