// Samples in shards: MDS files, and streams of them.
#include "module.h"
#include "tessera/streaming.h"

namespace tessera::python {
namespace {

nb::object value_of(const MdsValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return nb::bytes(text->data(), text->size());
  return nb::cast(std::get<Tensor>(value));
}

nb::dict dict_of(const MdsSample& sample) {
  nb::dict out;
  for (const auto& [name, value] : sample) out[name.c_str()] = value_of(value);
  return out;
}

MdsSample sample_of(const nb::dict& values) {
  MdsSample out;
  for (const auto& [name, value] : values) {
    MdsValue& to = out[nb::cast<std::string>(name)];
    if (nb::isinstance<nb::bytes>(value)) {
      const auto bytes = nb::borrow<nb::bytes>(value);
      to = std::string(bytes.c_str(), bytes.size());
    } else {
      to = nb::cast<Tensor>(value).contiguous();
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> pairs_of(const std::vector<MdsColumn>& columns) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const MdsColumn& column : columns) out.emplace_back(column.name, column.encoding);
  return out;
}

template <class Fn>
auto unlocked(Fn&& fn) {
  const Unlocked scope;
  return fn();
}

RemoteOptions remote_options(const std::string& cache, int64_t limit, int attempts, double stall, double deadline) {
  return {.cache = cache, .cache_limit = limit, .attempts = attempts, .stall = stall, .deadline = deadline};
}

void bind_writer(nb::module_& m) {
  nb::class_<MdsWriter>(m, "MdsWriter", "Writes a new folder of samples.")
      .def(
          "__init__",
          [](MdsWriter* made, const std::string& folder,
             const std::vector<std::pair<std::string, std::string>>& columns, const std::string& compression,
             std::vector<std::string> hashes, int64_t size_limit) {
            std::vector<MdsColumn> all;
            for (const auto& [name, encoding] : columns) all.push_back({name, encoding});
            new (made) MdsWriter(folder, std::move(all), {compression, std::move(hashes), size_limit});
          },
          nb::arg("folder"), nb::arg("columns"), nb::arg("compression"), nb::arg("hashes"), nb::arg("size_limit"))
      .def(
          "write",
          [](MdsWriter& writer, const nb::dict& values) {
            const MdsSample sample = sample_of(values);
            unlocked([&] { writer.write(sample); });
          },
          nb::arg("sample"), "Tensors and bytes by the names of columns.")
      .def("finish", &MdsWriter::finish, nb::call_guard<Unlocked>(), "Writes the last shard and the index.")
      .def_prop_ro("samples", &MdsWriter::samples)
      .def_prop_ro("shards", &MdsWriter::shards);
}

void bind_reader(nb::module_& m) {
  nb::class_<MdsReader>(m, "MdsReader", "The samples of a folder or an address.")
      .def(
          "__init__",
          [](MdsReader* made, const std::string& folder, bool check_hashes, int64_t memory_limit,
             const RemoteOptions& remote) {
            const Unlocked scope;
            new (made) MdsReader(folder, {check_hashes, memory_limit, remote});
          },
          nb::arg("folder"), nb::arg("check_hashes"), nb::arg("memory_limit"), nb::arg("remote"))
      .def_prop_ro("folder", &MdsReader::folder)
      .def_prop_ro("columns", [](const MdsReader& reader) { return pairs_of(reader.columns()); })
      .def_prop_ro("shard_sizes", &MdsReader::shard_sizes)
      .def("size", &MdsReader::size)
      .def(
          "sample",
          [](const MdsReader& reader, int64_t index) {
            return dict_of(unlocked([&] { return reader.sample(index); }));
          },
          nb::arg("index"))
      .def("verify", &MdsReader::verify, nb::arg("shard"), nb::call_guard<Unlocked>());
}

void bind_streaming(nb::module_& m) {
  nb::class_<DataStream>(m, "Stream", "A data set, and how much of it an epoch has.")
      .def(
          "__init__",
          [](DataStream* made, const std::string& folder, std::optional<double> proportion,
             std::optional<double> repeat, std::optional<int64_t> choose) {
            new (made) DataStream{folder, proportion, repeat, choose};
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("proportion").none() = nb::none(),
          nb::arg("repeat").none() = nb::none(), nb::arg("choose").none() = nb::none())
      .def_ro("folder", &DataStream::folder)
      .def_ro("proportion", &DataStream::proportion)
      .def_ro("repeat", &DataStream::repeat)
      .def_ro("choose", &DataStream::choose);
  nb::class_<StreamingOptions>(m, "StreamingOptions", "What StreamingDataset takes.")
      .def(nb::init<>())
      .def_prop_rw(
          "shuffle", [](const StreamingOptions&) { return ""; },
          [](StreamingOptions& o, const std::string& name) { o.order.shuffle = parse_shuffle(name); })
      .def_prop_rw(
          "seed", [](const StreamingOptions& o) { return o.order.seed; },
          [](StreamingOptions& o, uint64_t seed) { o.order.seed = seed; })
      .def_prop_rw(
          "block", [](const StreamingOptions& o) { return o.order.block; },
          [](StreamingOptions& o, int64_t block) { o.order.block = block; })
      .def_prop_rw(
          "canonical_nodes", [](const StreamingOptions& o) { return o.order.canonical_nodes; },
          [](StreamingOptions& o, int64_t nodes) { o.order.canonical_nodes = nodes; })
      .def_prop_rw(
          "nodes", [](const StreamingOptions& o) { return o.order.nodes; },
          [](StreamingOptions& o, int64_t nodes) { o.order.nodes = nodes; })
      .def_prop_rw(
          "ranks_per_node", [](const StreamingOptions& o) { return o.order.ranks_per_node; },
          [](StreamingOptions& o, int64_t ranks) { o.order.ranks_per_node = ranks; })
      .def_prop_rw(
          "batch", [](const StreamingOptions& o) { return o.order.batch; },
          [](StreamingOptions& o, int64_t batch) { o.order.batch = batch; })
      .def_rw("rank", &StreamingOptions::rank)
      .def_rw("epoch_size", &StreamingOptions::epoch_size)
      .def_rw("granularity", &StreamingOptions::granularity)
      .def_rw("same_each_epoch", &StreamingOptions::same_each_epoch)
      .def_rw("ahead", &StreamingOptions::ahead)
      .def(
          "set_reader",
          [](StreamingOptions& o, bool check_hashes, int64_t memory_limit, const RemoteOptions& remote) {
            o.reader = {check_hashes, memory_limit, remote};
          },
          nb::arg("check_hashes"), nb::arg("memory_limit"), nb::arg("remote"));
  nb::class_<StreamingDataset>(m, "StreamingDataset", "Samples of several streams, in an order for all ranks.")
      .def(
          "__init__",
          [](StreamingDataset* made, const std::vector<DataStream>& streams, const StreamingOptions& options) {
            const Unlocked scope;
            new (made) StreamingDataset(streams, options);
          },
          nb::arg("streams"), nb::arg("options"))
      .def_prop_ro("columns", [](const StreamingDataset& data) { return pairs_of(data.columns()); })
      .def("size", &StreamingDataset::size)
      .def_prop_ro("epoch_size", &StreamingDataset::epoch_size)
      .def_prop_ro("chosen", &StreamingDataset::chosen)
      .def(
          "sample",
          [](const StreamingDataset& data, int64_t id) { return dict_of(unlocked([&] { return data.sample(id); })); },
          nb::arg("id"))
      .def("order", &StreamingDataset::order, nb::arg("epoch"), nb::arg("first") = 0, nb::call_guard<Unlocked>())
      .def("begin", &StreamingDataset::begin, nb::call_guard<Unlocked>())
      .def("next_id", &StreamingDataset::next_id, nb::call_guard<Unlocked>())
      .def("state",
           [](const StreamingDataset& data) {
             const StreamingState s = data.state();
             nb::dict out;
             out["epoch"] = s.epoch;
             out["sample_in_epoch"] = s.sample_in_epoch;
             out["num_canonical_nodes"] = s.num_canonical_nodes;
             out["shuffle_seed"] = s.shuffle_seed;
             out["initial_physical_nodes"] = s.initial_physical_nodes;
             return out;
           })
      .def(
          "load_state",
          [](StreamingDataset& data, int64_t epoch, int64_t sample, int64_t canonical, uint64_t seed, int64_t initial) {
            const Unlocked scope;
            data.load_state({epoch, sample, canonical, seed, initial});
          },
          nb::arg("epoch"), nb::arg("sample_in_epoch"), nb::arg("num_canonical_nodes"), nb::arg("shuffle_seed"),
          nb::arg("initial_physical_nodes"));
}

}  // namespace

void bind_data(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_data");
  nb::class_<RemoteOptions>(m, "RemoteOptions", "How addresses are read.")
      .def(
          "__init__",
          [](RemoteOptions* made, const std::string& cache, int64_t limit, int attempts, double stall,
             double deadline) { new (made) RemoteOptions(remote_options(cache, limit, attempts, stall, deadline)); },
          nb::arg("cache"), nb::arg("cache_limit"), nb::arg("attempts"), nb::arg("stall"), nb::arg("deadline"));
  bind_writer(m);
  bind_reader(m);
  bind_streaming(m);
}

}  // namespace tessera::python
