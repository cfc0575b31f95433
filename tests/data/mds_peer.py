"""Our shards and orders of samples beside mosaicml-streaming's, whose import of PyTorch is replaced. See scripts/mds_tests."""

import importlib.abc
import importlib.machinery
import json
import logging
import os
import subprocess
import sys
import tempfile
import types
import warnings

import numpy as np

TESSERA = sys.argv[1]
STUBS = ("torch", "torchvision", "transformers", "datasets", "pandas", "google", "boto3", "botocore")


class StubModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Stubs())
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
from streaming.base.format.mds.reader import MDSReader  # noqa: E402
from streaming.base.format.mds.writer import MDSWriter  # noqa: E402
from streaming.base.compression import decompress  # noqa: E402
from streaming.base.hashing import get_hash  # noqa: E402
from streaming.base.partition import get_partitions  # noqa: E402
from streaming.base.shuffle import get_shuffle  # noqa: E402
from streaming.base.batching.random import generate_work_random_batching  # noqa: E402
from streaming.base.dataset import StreamingDataset  # noqa: E402
from streaming.base.stream import Stream  # noqa: E402


def run(*arguments):
    return subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True)


def checked(*arguments):
    result = run(*arguments)
    assert result.returncode == 0, (arguments, result.stderr)
    return result.stdout


def read_with_peer(folder):
    """Every sample of a folder, its hashes compared."""
    with open(f"{folder}/index.json") as file:
        index = json.load(file)
    samples = []
    for shard in index["shards"]:
        raw = f"{folder}/{shard['raw_data']['basename']}"
        if shard["zip_data"]:
            with open(f"{folder}/{shard['zip_data']['basename']}", "rb") as file:
                packed = file.read()
            check_hashes(shard["zip_data"], packed)
            with open(raw, "wb") as file:
                file.write(decompress(shard["compression"], packed))
        with open(raw, "rb") as file:
            check_hashes(shard["raw_data"], file.read())
        samples += list(MDSReader.from_json(folder, "", shard))
        if shard["zip_data"]:
            os.remove(raw)
    return samples


def check_hashes(info, data):
    assert len(data) == info["bytes"]
    for name, digits in info["hashes"].items():
        assert get_hash(name, data) == digits, name


COLUMNS = {
    "any": "ndarray", "typed": "ndarray:float32", "fixed": "ndarray:uint16:3,5", "int": "int", "str": "str",
    "json": "json", "bytes": "bytes", "png": "png", "jpeg": "jpeg", "str_int": "str_int", "str_float": "str_float",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
                               "float32", "float64")},
}


def random_sample(random):
    def array(dtype, shape):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(random.bytes(count), dtype).reshape(shape).copy()

    dtypes = [name for name in COLUMNS if name[-1].isdigit() and name != "str_int"]
    out = {name: np.dtype(name).type(random.integers(0, 100)) for name in dtypes}
    return out | {
        "any": array(random.choice(dtypes), tuple(random.integers(1, 300, random.integers(1, 3)))),
        "typed": array("float32", tuple(random.integers(1, 5, 3))), "fixed": array("uint16", (3, 5)),
        "int": int(random.integers(-(2**62), 2**62)), "str": "tëxt" * int(random.integers(0, 5)),
        "json": {"a": [1, None, "ü"]}, "bytes": random.bytes(random.integers(0, 50)),
        "png": b"\x89PNG\r\n\x1a\n" + random.bytes(9), "jpeg": b"\xff\xd8\xff" + random.bytes(9),
        "str_int": 3**50, "str_float": 0.1,
    }


def peer_files_are_read(folder):
    """The peer's files, every column, are whole; and what we write again from them has the same bytes."""
    random = np.random.default_rng(1)
    for i, compression in enumerate((None, "zstd", "zstd:7", "gz", "gz:1")):
        out = f"{folder}/peer{i}"
        hashes = ["sha1", "xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64"]
        with MDSWriter(out=out, columns=COLUMNS, compression=compression, hashes=hashes, size_limit=20000) as writer:
            for _ in range(200):
                writer.write(random_sample(random))
        assert checked("data", "verify", out).startswith("200 samples"), out
        again = f"{folder}/again{i}"
        checked("data", "pack", out, "--out", again, "--size-limit", 20000, "--hashes", ",".join(hashes),
                *(["--compression", compression] if compression else []))
        with open(f"{out}/index.json") as one, open(f"{again}/index.json") as other:
            ours, theirs = json.load(other), json.load(one)
        for a, b in zip(ours["shards"], theirs["shards"], strict=True):
            assert a["raw_data"] == b["raw_data"], (a, b)
    print("peer's files: every column, 5 compressions, 6 hashes; written again with the same bytes")


def our_files_are_read(folder):
    lines = [f"line {i} ü" for i in range(3000)]
    with open(f"{folder}/lines.txt", "w") as file:
        file.write("\n".join(lines))
    objects = [{"i": i, "f": i / 7, "s": str(i), "j": [i]} for i in range(500)]
    with open(f"{folder}/lines.jsonl", "w") as file:
        file.write("\n".join(map(json.dumps, objects)))
    arrays = []
    os.mkdir(f"{folder}/arrays")
    for i, dtype in enumerate(("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
                               "float32", "float64")):
        arrays.append(np.arange(6 * (i + 1)).astype(dtype).reshape(i + 1, 2, 3))
        np.save(f"{folder}/arrays/{i:02}.npy", arrays[-1])
    for compression in ("", "zstd", "gz:3"):
        common = ["--hashes", "sha1,xxh64", "--size-limit", "16k", *(["--compression", compression] if compression else [])]
        name = compression.replace(":", "_")
        for source in ("lines.txt", "lines.jsonl", "arrays"):
            checked("data", "pack", f"{folder}/{source}", "--out", f"{folder}/{source}_{name}", *common)
        assert [s["text"] for s in read_with_peer(f"{folder}/lines.txt_{name}")] == lines
        assert read_with_peer(f"{folder}/lines.jsonl_{name}") == objects
        for sample, array in zip(read_with_peer(f"{folder}/arrays_{name}"), arrays, strict=True):
            assert sample["array"].dtype == array.dtype and np.array_equal(sample["array"], array)
    print("our files: text, JSON lines and arrays of every type, 3 compressions, 2 hashes")


def draw(random):
    """Options of an order, some of which cannot be."""
    def pick(*values):
        return values[random.integers(len(values))]

    sizes = random.integers(0 if random.random() < 0.2 else 1, pick(3, 50, 4000), random.integers(1, pick(4, 40)))
    if sizes.sum() == 0:
        sizes[0] = 1
    canonical, nodes, ranks = pick(1, 2, 3, 4, 6, 8, 64), pick(1, 2, 3, 4, 5, 8), pick(1, 2, 3, 8)
    initial = pick(None, None, 1, 2, 3, 4, 8)
    samples = int(sizes.sum())
    first = 0 if random.random() < 0.4 else int(random.integers(0, samples + nodes * ranks + 3))
    return dict(algorithm=pick("orig", "relaxed", "relaxed"), shuffle=pick("none", "naive", "py1s", "py2s", "py1br", "py1e", "py1e"),
                sizes=sizes.astype(np.int64), canonical=canonical, nodes=nodes, ranks=ranks, workers=pick(1, 1, 2, 3, 8),
                batch=pick(1, 2, 3, 8, 24), block=pick(2, 7, 100, 3000, 1 << 18),
                seed=int(pick(0, 9176, random.integers(2**31), random.integers(2**62))), epoch=pick(0, 1, 7, 1000),
                first=first, initial=initial)


def order_of_peer(o):
    ids = get_partitions(o["algorithm"], int(o["sizes"].sum()), o["canonical"], o["nodes"], o["ranks"], o["workers"],
                         o["batch"], o["first"], o["initial"])
    if o["shuffle"] == "none":
        return ids
    places = get_shuffle(o["shuffle"], o["sizes"], o["canonical"], o["seed"], o["epoch"], o["block"])
    return np.where(ids != -1, places[ids], -1)


def orders_are_equal(folder, draws):
    random = np.random.default_rng(2)
    equal = refused = 0
    while equal < draws:
        o = draw(random)
        try:
            wanted = order_of_peer(o)
        except ValueError:
            wanted = None
        initial = (o["initial"] or 0) if o["algorithm"] == "relaxed" else 0
        out = f"{folder}/order.npy"
        result = run("data", "order", ",".join(map(str, o["sizes"])), "--shuffle", o["shuffle"], "--shuffle-seed", o["seed"],
                     "--shuffle-block", o["block"], "--canonical-nodes", o["canonical"], "--nodes", o["nodes"],
                     "--ranks", o["ranks"], "--workers", o["workers"], "--batch", o["batch"], "--epoch", o["epoch"],
                     "--first", o["first"], "--initial-nodes", initial, "--out", out)
        if wanted is None:
            assert result.returncode == 2, ("the peer refuses", o)
            refused += 1
            continue
        assert result.returncode == 0, (result.stderr, o)
        assert np.array_equal(np.load(out), wanted), o
        equal += 1
    print(f"orders: {equal} random ones equal; {refused} more are refused by the peer and by us")


def draw_streams(random):
    """Options of a mixture, some of which cannot be."""
    def pick(*values):
        return values[random.integers(len(values))]

    count = int(random.integers(1, pick(4, 12)))
    shards = [random.integers(1, pick(3, 50, 900), random.integers(1, pick(3, 12))).astype(np.int64) for _ in range(count)]
    if random.random() < 0.05:
        shards[0] = np.array([12000])  # of which a part is drawn in another way
    kind = pick("none", "proportions", "repeats", "choose")
    weights = {"none": [], "choose": [int(n) for n in random.integers(0, 400, count)],
               "repeats": [float(f"{x:.3f}") for x in random.random(count) * 3],
               "proportions": [float(f"{x:.3f}") for x in random.random(count)]}[kind]
    epoch_size = int(pick(0, random.integers(1, 3000))) if kind in ("none", "proportions") else 0
    first = int(random.random() < 0.4 and random.integers(0, 300))
    return dict(draw(random), first=first, shards=shards, kind=kind, weights=weights, epoch_size=epoch_size,
                granularity=int(pick(1, 1, 7, 100)), method=pick("balanced", "balanced", "fixed"))


def mixture_of_peer(o):
    """The work of StreamingDataset, without its files and processes."""
    streams = []
    for i in range(len(o["shards"])):
        name = {"proportions": "proportion", "repeats": "repeat", "choose": "choose"}.get(o["kind"])
        streams.append(Stream(local="x", **({name: o["weights"][i]} if name else {})))
    sizes = np.array([shards.sum() for shards in o["shards"]])
    counts = np.array([len(shards) for shards in o["shards"]])
    samples = np.concatenate(o["shards"])
    dataset = types.SimpleNamespace(
        streams=streams, num_streams=len(streams), shuffle_seed=o["seed"], sampling_method=o["method"],
        sampling_granularity=o["granularity"], shards_per_stream=counts, shard_offset_per_stream=counts.cumsum() - counts,
        samples_per_shard=samples, sample_offset_per_shard=samples.cumsum() - samples, shuffle=o["shuffle"] != "none",
        num_canonical_nodes=o["canonical"], batch_size=o["batch"], partition_algo=o["algorithm"], shuffle_algo=o["shuffle"],
        shuffle_block_size=o["block"], initial_physical_nodes=o["initial"])
    dataset.epoch_seed_change = dataset.shuffle and o["method"] == "balanced"
    Stream.validate_weights(streams)
    dataset.epoch_size = Stream.apply_weights(streams, sizes, o["epoch_size"] or None, o["seed"])
    dataset.resample_streams = types.MethodType(StreamingDataset.resample_streams, dataset)
    world = types.SimpleNamespace(num_nodes=o["nodes"], ranks_per_node=o["ranks"], workers_per_rank=o["workers"])
    return generate_work_random_batching(dataset, world, o["epoch"], o["first"])


def mixtures_are_equal(folder, draws):
    random = np.random.default_rng(4)
    equal = refused = 0
    while equal < draws:
        o = draw_streams(random)
        try:
            wanted = mixture_of_peer(o)
        except ValueError:  # also of nothing to concatenate
            wanted = None
        initial = (o["initial"] or 0) if o["algorithm"] == "relaxed" else 0
        weights = ["--" + o["kind"], ",".join(map(str, o["weights"]))] if o["weights"] else []
        result = run("data", "order", *[",".join(map(str, shards)) for shards in o["shards"]], "--shuffle", o["shuffle"],
                     "--shuffle-seed", o["seed"], "--shuffle-block", o["block"], "--canonical-nodes", o["canonical"], "--nodes", o["nodes"],
                     "--ranks", o["ranks"], "--workers", o["workers"], "--batch", o["batch"], "--epoch", o["epoch"],
                     "--first", o["first"], "--initial-nodes", initial, "--epoch-size", o["epoch_size"], "--granularity", o["granularity"],
                     *weights, *(["--same-each-epoch"] if o["method"] == "fixed" else []), "--out", f"{folder}/order.npy")
        if wanted is None:
            assert result.returncode == 2, ("the peer refuses", o)
            refused += 1
            continue
        assert result.returncode == 0, (result.stderr, o)
        assert np.array_equal(np.load(f"{folder}/order.npy"), wanted), o
        equal += 1
    print(f"several streams: {equal} random mixtures equal; {refused} more are refused by the peer and by us")


def seconds(work):
    """Processor time of a call, its children's too."""
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def peer_reads(folder):
    """The peer's reader alone: without the locks, threads and files of its StreamingDataset, which cost it more."""
    with open(f"{folder}/index.json") as file:
        index = json.load(file)
    sizes = np.array([shard["samples"] for shard in index["shards"]])
    ends = sizes.cumsum()
    readers = []
    for shard in index["shards"]:
        with open(f"{folder}/{shard['zip_data']['basename']}", "rb") as file:
            raw = decompress(shard["compression"], file.read())
        with open(f"{folder}/{shard['raw_data']['basename']}", "wb") as file:
            file.write(raw)
        readers.append(MDSReader.from_json(folder, "", shard))
    for i in get_shuffle("py1e", sizes, 1, 9176, 0, 4_000_000):
        shard = np.searchsorted(ends, i, "right")
        readers[shard][i - (ends[shard] - sizes[shard])]
    for shard in index["shards"]:
        os.remove(f"{folder}/{shard['raw_data']['basename']}")


def show(what, rounds, ours, theirs):
    times = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    a, b = (min(t[i] for t in times) for i in range(2))
    print(f"{what}: {a:.3f} s of the processor, the peer {b:.3f} s, ratio {b / a:.2f}")


def speed(folder):
    random = np.random.default_rng(3)
    words = random.integers(0, 50257, 1000).astype(np.uint16)
    columns = {"tokens": "ndarray:uint16:256", "label": "int", "text": "str"}
    with MDSWriter(out=f"{folder}/tokens", columns=columns, compression="zstd", size_limit=1 << 22) as writer:
        for i in range(100_000):
            writer.write({"tokens": words[random.integers(0, 1000, 256)], "label": i, "text": f"sample {i}"})
    show("100,000 samples of 256 tokens, a label and a text, zstd, read in the order py1e", 3,
         lambda: checked("data", "read", f"{folder}/tokens"), lambda: peer_reads(f"{folder}/tokens"))
    mixture = dict(shards=[np.full(400, 10_000), np.full(300, 10_000)], kind="repeats", weights=[1.5, 1.3], epoch_size=0, granularity=1,
                   method="balanced", algorithm="relaxed", shuffle="py1e", canonical=2, nodes=2, ranks=8, workers=1, batch=32, first=0,
                   initial=None, seed=9176, epoch=0, block=2_000_000)
    show("an order of 9.9 M samples drawn from two streams, py1e", 3,
         lambda: checked("data", "order", *[",".join(map(str, shards)) for shards in mixture["shards"]], "--repeats", "1.5,1.3",
                         "--canonical-nodes", 2, "--nodes", 2, "--ranks", 8, "--batch", 32, "--out", f"{folder}/o.npy"),
         lambda: np.save(f"{folder}/peer.npy", mixture_of_peer(mixture)))
    assert np.array_equal(np.load(f"{folder}/o.npy"), np.load(f"{folder}/peer.npy"))
    sizes = np.full(1000, 10_000)
    arguments = ["data", "order", ",".join(map(str, sizes)), "--batch", 32, "--nodes", 2, "--ranks", 8, "--out", f"{folder}/o.npy"]
    o = dict(algorithm="relaxed", sizes=sizes, canonical=2, nodes=2, ranks=8, workers=1, batch=32, first=0, initial=None,
             seed=9176, epoch=0, block=2_000_000)
    for shuffle in ("naive", "py1s", "py2s", "py1br", "py1e"):
        show(f"an order of 10 M samples, {shuffle}, and the process that writes it as a file", 3,
             lambda: checked(*arguments, "--shuffle", shuffle, "--canonical-nodes", 2),
             lambda: np.save(f"{folder}/peer.npy", order_of_peer(o | {"shuffle": shuffle})))


def main():
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:] == ["--speed"]:
            return speed(folder)
        peer_files_are_read(folder)
        our_files_are_read(folder)
        orders_are_equal(folder, 500)
        mixtures_are_equal(folder, 300)


main()
