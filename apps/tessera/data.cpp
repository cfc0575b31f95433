// tessera data: folders of MDS shards are looked into and verified.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "data_commands.h"
#include "remote_choice.h"
#include "tessera/mds.h"
#include "tessera/sample_order.h"

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

void print_info(const MdsReader& reader) {
  int64_t bytes = 0, compressed = 0;
  std::set<std::string> compressions, hashes;
  const auto shards = reader.shards();
  for (const MdsShardInfo& shard : shards) {
    bytes += shard.bytes;
    compressed += shard.compressed_bytes;
    if (!shard.compression.empty()) compressions.insert(shard.compression);
    hashes.insert(shard.hashes.begin(), shard.hashes.end());
  }
  fmt::print("{} samples in {}, {}", reader.size(), shards_text(static_cast<int64_t>(shards.size())),
             decimal(static_cast<double>(bytes), "B"));
  if (compressed)
    fmt::print(", {} as {}", decimal(static_cast<double>(compressed), "B"), fmt::join(compressions, ", "));
  fmt::print("\nhashes: {}\n", hashes.empty() ? "none" : fmt::format("{}", fmt::join(hashes, ", ")));
  size_t width = 6;
  for (const MdsColumn& column : reader.columns()) width = std::max(width, column.name.size());
  fmt::print("{:<{}}  encoding\n", "column", width);
  for (const MdsColumn& column : reader.columns()) fmt::print("{:<{}}  {}\n", column.name, width, column.encoding);
}

void verify(const MdsReader& reader) {
  constexpr size_t ahead = 8;   // shards that are downloaded meanwhile
  std::vector<int64_t> firsts;  // samples of shards that have one
  for (int64_t at = 0; const int64_t size : reader.shard_sizes()) {
    if (size > 0) firsts.push_back(at);
    at += size;
  }
  const auto shards = static_cast<int64_t>(reader.shards().size());
  for (int64_t i = 0; i < shards; ++i) {
    const auto next = std::min(static_cast<size_t>(i), firsts.size());
    reader.prefetch(std::span(firsts).subspan(next, std::min(ahead, firsts.size() - next)));
    reader.verify(i);
  }
  fmt::print("{} samples in {} are whole\n", reader.size(), shards_text(shards));
}

// All samples of an epoch once, on one thread.
void read(const MdsReader& reader) {
  constexpr int64_t ahead = 4096;  // samples whose shards are downloaded meanwhile
  const Tensor ids = sample_order(reader.shard_sizes(), {}, 0);
  const auto begin = std::chrono::steady_clock::now();
  const std::span all(ids.data<int64_t>(), static_cast<size_t>(ids.numel()));
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % (ahead / 4) == 0) reader.prefetch(all.subspan(i, std::min<size_t>(ahead, all.size() - i)));
    reader.sample(all[i]);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} samples in {:.3f} s, {}\n", ids.numel(), seconds,
             decimal(static_cast<double>(ids.numel()) / seconds, "samples/s"));
}

// A folder of `data pack --block` has two of shards.
std::vector<std::string> folders_in(const std::string& folder, const RemoteOptions& remote) {
  const auto has_index = [&](const std::string& name) {
    return find_stored_file(name + "/index.json", remote).has_value();
  };
  std::error_code ignored;
  const bool is_local = folder.find("://") == std::string::npos;
  if ((is_local && !fs::is_directory(folder, ignored)) || has_index(folder)) return {folder};
  std::vector<std::string> out;
  for (const char* part : {"/train", "/validation"})
    if (has_index(folder + part)) out.push_back(folder + part);
  return out.empty() ? std::vector{folder} : out;
}

void add_folder_command(Command data, const std::string& name, const std::string& text,
                        void (*use)(const MdsReader& reader)) {
  struct Choice {
    std::string folder;
    RemoteChoice remote;
  };
  const Command command = data.command(name, text);
  auto c = std::make_shared<Choice>();
  command.option("folder", c->folder, "a folder with index.json, or its address: https://, http:// or s3://")
      .required();
  c->remote.add_to(command, "--");
  command.run([c, use] {
    const RemoteOptions remote = c->remote.settle();
    const std::vector<std::string> folders = folders_in(c->folder, remote);
    for (const std::string& folder : folders) {
      const MdsReader reader(folder, {.remote = remote});
      if (folders.size() > 1) fmt::print("{}:\n", folder);
      use(reader);
    }
  });
}

}  // namespace

void add_data(Command app) {
  const Command data = app.command("data", "Pack samples into shards (MDS), and look into them.");
  data.require_command();
  add_data_pack(data);
  add_data_order(data);
  add_folder_command(data, "info", "Say what is in a folder of shards.", print_info);
  add_folder_command(data, "read", "Read the samples of an epoch in the order py1e, and say how fast.", read);
  add_folder_command(data, "verify", "Read all shards of a folder: every hash, every offset, every value.", verify);
}

}  // namespace tessera::app
