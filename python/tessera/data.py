"""Samples in shards (MDS, as MosaicML Streaming has them): written, read, and streamed into training.

    with data.MdsWriter("out", {"tokens": "ndarray:uint16:65", "source": "str"}, compression="zstd") as writer:
        writer.write({"tokens": tokens, "source": "a book"})

    dataset = data.StreamingDataset([data.Stream("out", proportion=0.7), data.Stream("s3://bucket/more", proportion=0.3)],
                                    batch_size=8, shuffle=True, rank=world.rank, ranks_per_node=world.size)
    for sample in dataset:  # an epoch of this rank
        ...
    dataset.load_state_dict(state)  # what state_dict() said on any number of ranks
"""
from __future__ import annotations

import decimal
import json

from . import _C
from ._C._data import Stream  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, Iterator, Mapping, PathLike, Sequence

_NUMBERS = {"int": "int64", **{name: name for name in (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")}}
_TEXTS = {"str": str, "str_int": int, "str_float": float, "str_decimal": decimal.Decimal, "json": json.loads}


def _decoder(encoding):
    if encoding in _NUMBERS:
        return lambda value: value.item()
    if encoding in _TEXTS:
        return lambda value: _TEXTS[encoding](value.decode())
    return lambda value: value  # a tensor, or bytes


def _encoder(encoding):
    if encoding in _NUMBERS:
        return lambda value: _C_tensor(value, _NUMBERS[encoding])
    if encoding.startswith("ndarray"):
        return _as_tensor
    if encoding == "json":
        return lambda value: json.dumps(value).encode()
    if encoding in _TEXTS:
        return lambda value: str(value).encode()
    return bytes


def _C_tensor(value, dtype):
    import tessera
    return value if isinstance(value, _C.Tensor) else tessera.tensor(value, dtype=dtype)


def _as_tensor(value):
    import tessera
    return tessera.as_tensor(value)


def _bytes_of(size: int | str) -> int:
    """Bytes of a size such as "64gb", 1 kb being 1024 bytes, or a number of them."""
    if isinstance(size, int):
        return size
    text = size.strip().lower().removesuffix("b")
    unit = {"k": 10, "m": 20, "g": 30, "t": 40}.get(text[-1:], 0)
    return int(float(text[:-1] if unit else text) * (1 << unit))


class MdsWriter:
    """Writes a new folder of samples, and its index last. A `with` block that fails leaves nothing.

    `columns` maps names to encodings: int, float32 and other numbers, ndarray[:DTYPE[:SHAPE]], str, json, bytes, jpeg, png
    and what else include/tessera/mds.h lists. `compression` is zstd or gz, with a level such as zstd:7.
    """

    def __init__(self, out: PathLike, columns: Mapping[str, str], *, compression: str | None = None,
                 hashes: Sequence[str] = (), size_limit: int | str = 1 << 26) -> None:
        self._writer = _C._data.MdsWriter(str(out), list(columns.items()), compression or "", list(hashes), _bytes_of(size_limit))
        self._encoders = {name: _encoder(encoding) for name, encoding in columns.items()}

    def write(self, sample: Mapping[str, Any]) -> None:
        """A value for each column. Throws Error on any other sample, which is then not taken."""
        self._writer.write({name: self._encoders.get(name, bytes)(value) for name, value in sample.items()})

    def finish(self) -> None:
        """Writes the last shard and the index."""
        self._writer.finish()

    def __enter__(self) -> MdsWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.finish()
        else:
            del self._writer


class _Samples:
    """Values as Python has them: numbers, strings, tensors, bytes."""

    def _decode(self, sample):
        return {name: decode(sample[name]) for name, decode in self._decoders}

    @property
    def columns(self) -> dict[str, str]:
        """Encodings by the names of columns."""
        return dict(self._held.columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """A sample by its place among all of them."""
        size = self._held.size()
        if not -size <= index < size:
            raise IndexError(f"no sample {index} of {size}")
        return self._decode(self._held.sample(index % size))


def _remote(cache, cache_limit, download_retry, download_stall, download_timeout):
    return _C._data.RemoteOptions(str(cache or ""), _bytes_of(cache_limit), download_retry + 1, download_stall, download_timeout)


class MdsReader(_Samples):
    """The samples of a folder, or of an address: https://, http:// or s3://, whose shards are kept in the folder `cache`."""

    def __init__(self, folder: PathLike, *, check_hashes: bool = True, memory_limit: int | str = "1gb",
                 cache: PathLike | None = None, cache_limit: int | str = "64gb", download_retry: int = 4,
                 download_stall: float = 10, download_timeout: float = 300) -> None:
        remote = _remote(cache, cache_limit, download_retry, download_stall, download_timeout)
        self._held = _C._data.MdsReader(str(folder), check_hashes, _bytes_of(memory_limit), remote)
        self._decoders = [(name, _decoder(encoding)) for name, encoding in self._held.columns]

    def __len__(self) -> int:
        return self._held.size()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self)):
            yield self[index]

    def verify(self) -> None:
        """Reads all shards: every hash that is known, every offset, every value. Throws FileError on what is wrong."""
        for shard in range(len(self._held.shard_sizes)):
            self._held.verify(shard)


class StreamingDataset(_Samples):
    """What one rank reads of one or several streams: each `for` loop over it is an epoch.

    Arguments have the names and the meaning of MosaicML Streaming 0.13, and samples come in its order. Of an order that
    shall stay the same on other nodes, num_canonical_nodes is given. `cache` and what follows is for addresses.
    """

    def __init__(self, streams: PathLike | Stream | Sequence[Stream], *, batch_size: int = 1, shuffle: bool = False,
                 shuffle_algo: str = "py1e", shuffle_seed: int = 9176, shuffle_block_size: int | None = None,
                 num_canonical_nodes: int | None = None, epoch_size: int | None = None, sampling_method: str = "balanced",
                 sampling_granularity: int = 1, predownload: int | None = None, rank: int = 0, ranks_per_node: int = 1,
                 nodes: int = 1, check_hashes: bool = True, memory_limit: int | str = "1gb", cache: PathLike | None = None,
                 cache_limit: int | str = "64gb", download_retry: int = 4, download_stall: float = 10,
                 download_timeout: float = 300) -> None:
        if sampling_method not in ("balanced", "fixed"):
            raise _C.Error(f"streaming: sampling_method {sampling_method!r} is neither balanced nor fixed")
        if isinstance(streams, Stream):
            streams = [streams]
        elif not isinstance(streams, (list, tuple)):
            streams = [Stream(str(streams))]
        options = _C._data.StreamingOptions()
        options.shuffle = shuffle_algo if shuffle else "none"
        options.seed, options.block = shuffle_seed, shuffle_block_size or 0
        options.canonical_nodes = num_canonical_nodes or 0
        options.nodes, options.ranks_per_node, options.batch, options.rank = nodes, ranks_per_node, batch_size, rank
        options.epoch_size, options.granularity = epoch_size or 0, sampling_granularity
        options.same_each_epoch, options.ahead = sampling_method == "fixed", predownload or 0
        options.set_reader(check_hashes, _bytes_of(memory_limit),
                           _remote(cache, cache_limit, download_retry, download_stall, download_timeout))
        self._held = _C._data.StreamingDataset(list(streams), options)
        self._ranks = nodes * ranks_per_node
        self._decoders = [(name, _decoder(encoding)) for name, encoding in self._held.columns]

    @property
    def size(self) -> int:
        """Samples of all streams, each once."""
        return self._held.size()

    @property
    def epoch_size(self) -> int:
        """Samples of an epoch of all ranks."""
        return self._held.epoch_size

    @property
    def chosen(self) -> list[int]:
        """Samples of each stream in an epoch."""
        return self._held.chosen

    def __len__(self) -> int:
        """Samples of an epoch of one rank."""
        return -(-self._held.epoch_size // self._ranks)

    def ids(self) -> Iterator[int]:
        """The next epoch as numbers of samples, which self[id] reads; after load_state_dict() the rest of the one at hand."""
        self._held.begin()
        while (index := self._held.next_id()) is not None:
            yield index

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._decode(self._held.sample(index)) for index in self.ids())

    def order(self, epoch: int, first: int = 0) -> _C.Tensor:
        """Who reads what in an epoch, from the sample `first` on: i64 [nodes, ranks of a node, 1, batches, batch]."""
        return self._held.order(epoch, first)

    def state_dict(self) -> dict[str, int]:
        """Where all ranks are between two global batches, if each has read as much as this one."""
        return self._held.state()

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """The next loop goes on from there, on whatever ranks there are now. Throws Error on numbers that cannot be."""
        names = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")
        missing = [name for name in names[:4] if name not in state_dict]
        if missing:
            raise _C.Error(f"streaming: a state without {', '.join(missing)}")
        self._held.load_state(*(int(state_dict.get(name) or 0) for name in names))
