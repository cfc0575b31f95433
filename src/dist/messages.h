// Collectives over a library that moves messages: what MPI and Gloo have in common.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "dist/exchanges.h"

namespace tessera::dist {

class Messages : public Exchanges {
 public:
  void send(const char* data, int64_t bytes, int to) override;
  void recv(char* data, int64_t bytes, int from) override;

 protected:
  /// Messages of one lane come in the order in which they were sent.
  enum class Lane : uint8_t { Collectives, Between };
  Messages(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank);

  /// One message of all these pieces, which stay where they are until it is done. Throws Error, or Aborted.
  virtual void* begin_message(bool is_out, const iovec* pieces, size_t count, int peer, Lane lane) = 0;
  /// Whether it has gone or come; then it is no more.
  virtual bool is_done(void* message) = 0;
  /// Forgets one that nobody waits for any more.
  virtual void drop(void* message) = 0;
  /// A moment of one that has waited for any of these since then, first of all for that rank. Returns a rank of the
  /// group from which nothing has come, or -1.
  virtual int rest(std::span<void* const> messages, int other, int64_t began) = 0;

 private:
  /// A message on its way, or none.
  class Message {
   public:
    explicit Message(Messages& engine) : engine_(engine) {}
    Message(const Message&) = delete;
    ~Message() { drop(); }
    void begin(bool is_out, const iovec* pieces, size_t count, int peer, Lane lane) {
      message_ = engine_.begin_message(is_out, pieces, count, peer, lane);
    }
    void* get() const { return message_; }
    /// True once, when it has gone or come.
    bool ends();
    void drop();

   private:
    Messages& engine_;
    void* message_ = nullptr;
  };
  /// Of an exchange with one rank: what it begins with, and the two parts of the rest.
  struct Link {
    explicit Link(Messages& e) : says(e), hears(e), out{Message(e), Message(e)}, in{Message(e), Message(e)} {}
    Message says, hears, out[2], in[2];
    bool has_begun = false;
    std::vector<Message*> all() { return {&hears, in, in + 1, &says, out, out + 1}; }
  };

  bool advance(Flows& flows, int peer) override;
  void sleep(const Flows& flows, int other, int64_t began) override;
  void exchange(Flows& flows) override;
  void begin(const Flows& flows, int peer);
  void begin_parts(bool is_out, const Flow& flow, int peer);
  void wait(Message& message, int peer);

  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tessera::dist
