// The engine of ranks that see the same memory, be they threads of a process or processes of a host.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "dist/control.h"

namespace tessera::dist {

/// All collectives are made of rounds: each rank writes to its slot, all meet, and each reads the slots of others. Two
/// rounds use two slots in turn, so that a round needs one meeting and no more. Chunks stay in the caches on their way.
class Neighbours final : public Engine {
 public:
  /// Room for a group of so many ranks in the memory of the run, which one of them asks for.
  static uint64_t allocate(Control& control, int size);
  /// `members`: the ranks of the run that the group consists of; `rank` of them is this one.
  Neighbours(std::shared_ptr<Control> control, uint64_t at, std::vector<int> members, int rank);

  std::string_view name() const override { return "neighbours"; }
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
  struct Line;
  struct Mailbox;
  class Cursor;
  int size() const { return static_cast<int>(members_.size()); }
  Line& line(int rank) const;
  Mailbox& mailbox(int from, int to) const;
  char* slot(int rank, uint32_t round) const;
  char* mine() const { return slot(rank_, round_); }
  const char* theirs(int rank) const { return slot(rank, round_ - 1); }
  /// A call that goes on; it ends with the object.
  class Turn {
   public:
    Turn(Neighbours& engine, const Call& call);
    ~Turn() { engine_.busy_ = false; }
    Turn(const Turn&) = delete;

   private:
    Neighbours& engine_;
    std::optional<CallLog::Scope> logged_;
  };
  void meet();
  void charge(uint32_t round, int64_t came, const PhaseTimes* phases);
  void compare();
  void deal(const char* in, int64_t row, int64_t n);
  void collect(const Call& call, const char* in, char* out);
  void reduce_shares(const Call& call, std::span<const Segment> data);
  void combine_round(int64_t first, int64_t count, char* out, const Call& call, const char* own = nullptr);
  template <class Write, class Read>
  void in_chunks(int64_t bytes, int64_t step, const Write& write, const Read& read);

  std::shared_ptr<Control> control_;
  char* base_;
  std::vector<int> members_;
  int rank_;
  uint32_t round_ = 0;
  CallLog log_;
  std::atomic<bool> busy_{false};
  bool is_first_ = false;    // round of a call
  std::vector<char> share_;  // of a chunk, that this rank combines
  Call call_;
};

}  // namespace tessera::dist
