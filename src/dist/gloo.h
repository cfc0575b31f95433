// The engine of ranks that Gloo connects: a pair of it for each two of them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "dist/mesh.h"
#include "dist/messages.h"

namespace tessera::dist {

class Gloo final : public Messages {
 public:
  /// `group`: as Mesh::new_group() makes it. All ranks of the group make theirs. Throws Error where they do not reach
  /// each other.
  Gloo(std::shared_ptr<Control> control, std::shared_ptr<Mesh> mesh, uint64_t group, std::vector<int> members,
       int rank);
  ~Gloo() override;
  /// Why there is no Gloo; empty: there is. Opens it at the first call.
  static std::string why_not();

  std::string_view name() const override { return "gloo"; }

 private:
  struct Packed;
  void* begin_message(bool is_out, const iovec* pieces, size_t count, int peer, Lane lane) override;
  bool is_done(void* message) override;
  void drop(void* message) override;
  int rest(std::span<void* const> messages, int other, int64_t began) override;
  void connect_pairs(std::shared_ptr<Mesh> mesh, uint64_t group);

  void* context_ = nullptr;
  std::atomic<size_t> turn_{0};             // of the message to wait for
  std::vector<std::atomic<int64_t>> left_;  // when each rank was first seen to have ended; 0: not yet
};

}  // namespace tessera::dist
