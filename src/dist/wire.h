// What the launchers of several hosts, and ranks that share no memory, say to each other: frames of checked length.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::dist {

constexpr size_t kMaxFrame = size_t{1} << 20;  ///< bytes; a thousand ranks' states take less

/// Of a secret that all hosts of a run know.
using Key = std::array<uint64_t, 2>;
Key key_of(std::string_view secret);
/// 128 random bits in hexadecimal digits.
std::string new_secret();
/// Proves that who wrote the bytes has the key: SipHash-2-4, Aumasson and Bernstein 2012.
uint64_t mac(const Key& key, std::string_view bytes);

/// As IPv6 has it, also for IPv4 (::ffff:a.b.c.d). All zeros: the host of the hub.
using HostAddress = std::array<uint8_t, 16>;

/// The first word of who accepts: the other proves its secret by a number that was never used before.
struct Challenge {
  uint64_t version = 0, nonce = 0;
};

/// Who comes: a host, or a rank with a stream of a group's bytes.
struct Hello {
  uint64_t nonce = 0;
  int32_t host = -1, hosts = 0, procs = 0;  ///< of a host
  std::string name;
  uint64_t group = 0;  ///< of a stream
  int32_t from = -1;
  uint8_t purpose = 0;
  uint64_t proof = 0;  ///< of all this and the challenge
};
struct Welcome {
  uint64_t proof = 0;  ///< that who accepts knows the secret, too
};
struct Refused {
  std::string why;
};

/// Where a rank is: Place, on its way.
struct RankState {
  int32_t rank = 0, waits_for = 0;
  int64_t waited_ns = 0, step = 0;
  uint64_t calls = 0;
  uint16_t port = 0;
  uint8_t kind = 0, phase = 0, has_left = 0, process = 0, engine = 0;
};
/// Time that ranks of a host have waited for another one since it was last said.
struct Charge {
  int32_t rank = 0;
  uint8_t phase = 0;
  int64_t ns = 0;
};
/// Of a host, some times a second; also a sign of life.
struct HostState {
  uint32_t generation = 0;
  std::string aborted;  ///< why this host ended the run; empty: it goes on
  std::vector<RankState> ranks;
  std::vector<Charge> charges;
};
/// All ranks of a host have ended.
struct Ended {
  uint32_t generation = 0;
  int32_t code = 0, procs = 0;  ///< how many would begin anew
  uint8_t was_interrupted = 0;
};

/// The ranks of a run begin, for the first time or anew.
struct Begin {
  uint32_t generation = 0;
  int32_t ranks = 0, first = 0, procs = 0;  ///< the last two: of the host that reads it
};
/// What ranks need of others.
struct Whereabouts {
  int32_t rank = 0;
  HostAddress address{};
  uint16_t port = 0;
  uint8_t phase = 0, has_left = 0, engine = 0;
  bool operator==(const Whereabouts&) const = default;
};
/// What has changed of others, some times a second; also a sign of life.
struct Table {
  uint32_t generation = 0;
  std::vector<Whereabouts> ranks;
};
struct Abort {
  uint32_t generation = 0;
  std::string reason;
};
/// Somebody pressed Ctrl-C, or the like.
struct Interrupt {
  int32_t signal = 0;
};
/// Where is that rank? From the first host's launcher to the rank's own.
struct AskStack {
  uint32_t generation = 0;
  int32_t rank = 0;
};
/// The calls it is in, a line each, the innermost first.
struct Stack {
  uint32_t generation = 0;
  int32_t rank = 0;
  std::string lines;
};
/// The run is over.
struct End {
  int32_t code = 0;
  std::string why;  ///< empty where it was said before
};

using Message = std::variant<Challenge, Hello, Welcome, Refused, HostState, Ended, Begin, Table, Abort, Interrupt, End,
                             AskStack, Stack>;

/// Four bytes of length, one of the kind, the rest.
std::string encode(const Message& message);
/// One frame without its length. Throws Error where it is none.
Message decode(std::string_view frame);
/// The length that four bytes say. Throws Error if a frame is not so long.
size_t frame_length(const char* bytes);

/// Messages of a stream of bytes.
class MessageStream {
 public:
  void feed(std::string_view bytes) { rest_ += bytes; }
  /// Throws Error at bytes that are none.
  std::optional<Message> next();

 private:
  std::string rest_;
};

/// What each side of a new connection proves.
uint64_t proof_of(const Key& key, const Challenge& challenge, const Hello& hello);
uint64_t proof_of_welcome(const Key& key, const Challenge& challenge, const Hello& hello);
/// Differs where the two programs would not understand each other.
uint64_t wire_version();

}  // namespace tessera::dist
