// The engine of ranks that mpirun began: messages of MPI, through whatever network it knows.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "dist/exchanges.h"

namespace tessera::dist {

class Mpi final : public Exchanges {
 public:
  /// `group`: as Mesh::new_group() makes it. Throws Error where MPI has no tag for it.
  Mpi(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank);
  ~Mpi() override;
  /// Why ranks of the run do not reach each other through MPI; empty: they do. Opens MPI at the first call.
  static std::string why_not(const Control& control);
  /// Where it is made first, MPI is left last, once this rank no longer waits for others nor they for it.
  struct AtExit {
    ~AtExit();
  };

  std::string_view name() const override { return "mpi"; }
  void send(const char* data, int64_t bytes, int to) override;
  void recv(char* data, int64_t bytes, int from) override;

 private:
  /// A message on its way: none, or a request of MPI.
  class Message {
   public:
    Message() = default;
    Message(const Message&) = delete;
    ~Message() { drop(); }
    void begin(bool is_out, const iovec* pieces, size_t count, int other, int tag);
    bool has_begun() const { return request_ != nullptr; }
    /// True once, when it has gone or come.
    bool ends();
    void drop();

   private:
    void* request_ = nullptr;
  };
  /// Of an exchange with one rank: what it begins with, and the two parts of the rest.
  struct Link {
    Message says, hears, out[2], in[2];
    bool has_begun = false;
  };

  bool advance(Flows& flows, int peer) override;
  void sleep(const Flows& flows, int other, int64_t began) override;
  void exchange(Flows& flows) override;
  void begin(const Flows& flows, int peer);
  void begin_parts(bool is_out, const Flow& flow, int peer);
  void wait(Message& message, int peer);

  int tag_;  // of collectives; the next one is that of messages
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tessera::dist
