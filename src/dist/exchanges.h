// Collectives of ranks that share no memory, made of exchanges; how bytes get from rank to rank is a derived class's.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/control.h"
#include "dist/engine.h"

namespace tessera::dist {

/// An exchange is bytes to some ranks and from some, all at once. The first of a collective begins with what each rank
/// calls, which all others read. A large sum has two for each chunk, of which neighbouring chunks share one: every rank
/// gets its share of the chunk from all, combines it, and gives it to all.
class Exchanges : public Engine {
 public:
  void all_reduce(const Call& call, std::span<const Segment> data) override;
  void reduce_scatter(const Call& call, const char* in, char* out) override;
  void reduce(const Call& call, char* data) override;
  void all_gather(const Call& call, const char* in, char* out) override;
  void gather(const Call& call, const char* in, char* out) override;
  void scatter(const Call& call, const char* in, char* out) override;
  void broadcast(const Call& call, char* data) override;
  void all_to_all(const Call& call, const char* in, char* out) override;
  void barrier() override;

 protected:
  /// `members`: the ranks of the run that the group consists of; `rank` of them is this one.
  Exchanges(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank);

  /// Bytes to a rank or from it.
  struct Flow {
    std::vector<iovec> pieces;
    size_t at = 0;      // the next of them
    size_t second = 0;  // where a part begins that may be a message of its own: as many bytes for both ranks
    bool ended() const { return at == pieces.size(); }
    void add(const void* data, int64_t bytes) {
      if (bytes > 0) pieces.push_back({const_cast<void*>(data), static_cast<size_t>(bytes)});
    }
    void begin_second() { second = pieces.size(); }
  };
  /// Of an exchange, for each rank.
  struct Flows {
    explicit Flows(int size) : out(static_cast<size_t>(size)), in(static_cast<size_t>(size)) {}
    std::vector<Flow> out, in;
  };

  /// Before the first collective of the group.
  virtual void connect() {}
  /// Goes on with the flows of one rank: true where anything has moved.
  virtual bool advance(Flows& flows, int peer) = 0;
  /// Until something may move, for a moment at most, in which `other` of the group is waited for.
  virtual void sleep(const Flows& flows, int other, int64_t began) = 0;
  virtual void exchange(Flows& flows);
  /// The connection to that rank of the group has ended: throws Aborted, once it is known who ended and why.
  [[noreturn]] void lost(int peer, const std::string& why);

  int size() const { return static_cast<int>(members_.size()); }
  int rank_of(int peer) const { return members_[static_cast<size_t>(peer)]; }
  int self() const { return rank_of(rank_); }
  /// Whether flows begin with what ranks call, as their first piece.
  bool is_first() const { return is_first_; }
  /// Whether that rank, which has said so, calls what this one calls.
  bool calls_alike(int peer) const;

  std::shared_ptr<Control> control_;
  std::vector<int> members_;
  int rank_;
  CallLog log_;
  int looks_ = 100;  // at all ranks before this one sleeps

 private:
  /// What a rank says of its call.
  struct Said {
    Call call;
    uint64_t number = 0;
  };
  /// A call that goes on; it ends with the object.
  class Turn {
   public:
    Turn(Exchanges& engine, const Call& call);
    ~Turn() { engine_.busy_ = false; }
    Turn(const Turn&) = delete;

   private:
    Exchanges& engine_;
    std::optional<CallLog::Scope> logged_;
  };

  void heard(int peer);
  int waited_for(const Flows& flows) const;
  void say_difference();
  void combine_in_chunks(const Call& call, std::span<const Segment> data, int root);
  template <class From, class To>
  void move_rows(const Call& call, const From& from, const To& to);

  std::atomic<bool> busy_{false};
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
