// The engine of ranks that mpirun began: messages of MPI, through whatever network it knows.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "dist/messages.h"

namespace tessera::dist {

class Mpi final : public Messages {
 public:
  /// `group`: as Mesh::new_group() makes it. Throws Error where MPI has no tag for it.
  Mpi(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank);
  /// Why ranks of the run do not reach each other through MPI; empty: they do. Opens MPI at the first call.
  static std::string why_not(const Control& control);
  /// Where it is made first, MPI is left last, once this rank no longer waits for others nor they for it.
  struct AtExit {
    ~AtExit();
  };

  std::string_view name() const override { return "mpi"; }

 private:
  void* begin_message(bool is_out, const iovec* pieces, size_t count, int peer, Lane lane) override;
  bool is_done(void* message) override;
  void drop(void* message) override;
  int rest(std::span<void* const> messages, int other, int64_t began) override;

  int tag_;  // of the first lane
};

}  // namespace tessera::dist
