// The engine of ranks that share no memory: streams of TCP between each two of them.
#pragma once
#include <sys/uio.h>

#include <memory>
#include <optional>
#include <vector>

#include "dist/mesh.h"

namespace tessera::dist {

/// A collective is made of exchanges: bytes to some ranks and from some, all at once. The first begins with what each
/// rank calls, which all others read. A large sum has two for each chunk, of which neighbouring chunks share one: every
/// rank gets its share of the chunk from all, combines it, and gives it to all.
class Tcp final : public Engine {
 public:
  /// `members`: the ranks of the run that the group consists of; `rank` of them is this one.
  Tcp(std::shared_ptr<Control> control, std::shared_ptr<Mesh> mesh, uint64_t group, std::vector<int> members, int rank);

  std::string_view name() const override { return "tcp"; }
  void all_reduce(const Call& call, std::span<const Segment> data) override;
  void reduce_scatter(const Call& call, const char* in, char* out) override;
  void reduce(const Call& call, char* data) override;
  void all_gather(const Call& call, const char* in, char* out) override;
  void gather(const Call& call, const char* in, char* out) override;
  void scatter(const Call& call, const char* in, char* out) override;
  void broadcast(const Call& call, char* data) override;
  void all_to_all(const Call& call, const char* in, char* out) override;
  void barrier() override;
  void send(const char* data, int64_t bytes, int to) override;
  void recv(char* data, int64_t bytes, int from) override;

 private:
  /// What a rank says of its call.
  struct Said {
    Call call;
    uint64_t number = 0;
  };
  /// Bytes to a rank or from it.
  struct Flow {
    std::vector<iovec> pieces;
    size_t at = 0;  // the next of them
    bool ended() const { return at == pieces.size(); }
    void add(const void* data, int64_t bytes) {
      if (bytes > 0) pieces.push_back({const_cast<void*>(data), static_cast<size_t>(bytes)});
    }
    void advance(size_t bytes);
  };
  /// Of an exchange, for each rank.
  struct Flows {
    explicit Flows(int size) : out(static_cast<size_t>(size)), in(static_cast<size_t>(size)) {}
    std::vector<Flow> out, in;
  };
  /// A call that goes on; it ends with the object.
  class Turn {
   public:
    Turn(Tcp& engine, const Call& call);
    ~Turn() { engine_.busy_ = false; }
    Turn(const Turn&) = delete;

   private:
    Tcp& engine_;
    std::optional<CallLog::Scope> logged_;
  };

  int size() const { return static_cast<int>(members_.size()); }
  int self() const { return members_[static_cast<size_t>(rank_)]; }
  void connect();
  void exchange(Flows& flows);
  bool advance(Flows& flows, int peer);
  bool write_some(const Socket& to, Flow& flow, int peer);
  bool read_some(const Socket& from, Flow& flow, int peer);
  void sleep(const Flows& flows, int64_t began);
  void transfer(const Socket& socket, Flow& flow, int peer, bool is_out);
  void heard(int peer);
  void say_difference();
  [[noreturn]] void lost(int peer, int code);
  void combine_in_chunks(const Call& call, std::span<const Segment> data, int root);
  template <class From, class To>
  void move_rows(const Call& call, const From& from, const To& to);

  std::shared_ptr<Control> control_;
  std::shared_ptr<Mesh> mesh_;
  uint64_t group_;
  std::vector<int> members_;
  int rank_;
  std::vector<Socket> streams_, to_, from_;  // of collectives, messages to ranks, messages from them
  std::atomic<bool> busy_{false};
  CallLog log_;
  Said mine_;
  std::vector<Said> said_;  // by others
  int unheard_ = 0;         // others that have said nothing of this call yet
  bool is_first_ = false;   // exchange of a call
  int last_ = 0;            // to say something
  int64_t last_came_ = 0;
  int differing_ = -1;  // the lowest rank that calls something else
  int64_t differs_since_ = 0;
  std::vector<char> parts_, own_, result_;
};

}  // namespace tessera::dist
