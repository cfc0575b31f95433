// A checkpoint that ranks write together.
#include <algorithm>
#include <cstring>

#include "io/checkpoint_parts.h"
#include "tessera/dist_checkpoint.h"
#include "tessera/ops.h"

namespace tessera::dist {
namespace {

// What each rank says, at rank 0.
std::vector<std::string> gathered(const std::string& text, const Group& group) {
  const auto size = static_cast<int64_t>(text.size());
  const std::vector<int64_t> sizes = all_gather(tensor(std::vector<int64_t>{size}, {1}), group).to_vector<int64_t>();
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  Tensor mine = zeros({1, longest}, UInt8);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  const Tensor all = gather(mine, 0, group);
  std::vector<std::string> out;
  for (int64_t r = 0; r < all.size(0); ++r)
    out.emplace_back(static_cast<const char*>(all.data_ptr()) + r * longest,
                     static_cast<size_t>(sizes[static_cast<size_t>(r)]));
  return out;
}

}  // namespace

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Group& group, int keep) {
  if (group.size() == 1) return tessera::save_checkpoint(path, checkpoint, keep);
  const InPhase phase(group, Phase::Checkpoint);
  const int64_t mine = group.rank() == 0 ? next_generation(path) : 0;
  const int64_t generation = broadcast(tensor(std::vector<int64_t>{mine}, {1}), 0, group).item<int64_t>();
  const std::string entry =
      save_part(path, generation, group.rank(), share_of(checkpoint.tensors, group.rank(), group.size()));
  const std::vector<std::string> entries = gathered(entry, group);
  if (group.rank() == 0) save_index(path, entries, checkpoint.metadata, keep);
  barrier(group);
}

}  // namespace tessera::dist
