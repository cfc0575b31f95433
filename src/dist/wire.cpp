#include "dist/wire.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "dist/engine.h"
#include "tessera/error.h"

namespace tessera::dist {
namespace {

constexpr uint64_t kWireVersion = 3;

/// Appends values, the lowest byte first.
class Writer {
 public:
  std::string out;
  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_integral_v<T>)
      for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
    else if constexpr (std::is_same_v<T, HostAddress>) out.append(value.begin(), value.end());
    else {
      put(static_cast<uint32_t>(value.size()));
      if constexpr (std::is_same_v<T, std::string>) out += value;
      else
        for (const auto& each : value) fields(*this, each);
    }
  }
};

/// Takes values off, none beyond the end.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(size_t n) {
    if (n > rest_.size()) throw Error("dist: a message is cut short");
    const std::string_view out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }
  template <class T>
  void get(T& value) {
    if constexpr (std::is_integral_v<T>) {
      uint64_t bits = 0;
      const std::string_view bytes = take(sizeof(T));
      for (size_t i = 0; i < sizeof(T); ++i) bits |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
      value = static_cast<T>(bits);
    } else if constexpr (std::is_same_v<T, HostAddress>) {
      std::memcpy(value.data(), take(value.size()).data(), value.size());
    } else {
      uint32_t count = 0;
      get(count);
      if constexpr (std::is_same_v<T, std::string>) value = take(count);
      else {
        if (count > rest_.size()) throw Error("dist: a message is cut short");  // each has a byte at least
        value.resize(count);
        for (auto& each : value) fields(*this, each);
      }
    }
  }
  std::string_view rest_;
};

template <class T, class M>
concept Is = std::is_same_v<std::remove_const_t<T>, M>;

// What each message consists of, for both.
void fields(auto& io, Is<Challenge> auto& m) { io(m.version, m.nonce); }
void fields(auto& io, Is<Hello> auto& m) {
  io(m.nonce, m.host, m.hosts, m.procs, m.name, m.group, m.from, m.purpose, m.proof);
}
void fields(auto& io, Is<Welcome> auto& m) { io(m.proof); }
void fields(auto& io, Is<Refused> auto& m) { io(m.why); }
void fields(auto& io, Is<RankState> auto& m) {
  io(m.rank, m.waits_for, m.waited_ns, m.step, m.calls, m.port, m.kind, m.phase, m.has_left, m.process, m.engine);
}
void fields(auto& io, Is<Charge> auto& m) { io(m.rank, m.phase, m.ns); }
void fields(auto& io, Is<HostState> auto& m) { io(m.generation, m.aborted, m.ranks, m.charges); }
void fields(auto& io, Is<Ended> auto& m) { io(m.generation, m.code, m.procs, m.was_interrupted); }
void fields(auto& io, Is<Begin> auto& m) { io(m.generation, m.ranks, m.first, m.procs); }
void fields(auto& io, Is<Whereabouts> auto& m) { io(m.rank, m.address, m.port, m.phase, m.has_left, m.engine); }
void fields(auto& io, Is<Table> auto& m) { io(m.generation, m.ranks); }
void fields(auto& io, Is<Abort> auto& m) { io(m.generation, m.reason); }
void fields(auto& io, Is<Interrupt> auto& m) { io(m.signal); }
void fields(auto& io, Is<End> auto& m) { io(m.code, m.why); }
void fields(auto& io, Is<AskStack> auto& m) { io(m.generation, m.rank); }
void fields(auto& io, Is<Stack> auto& m) { io(m.generation, m.rank, m.lines); }

template <size_t... I>
Message decode_as(size_t kind, Reader& reader, std::index_sequence<I...>) {
  Message out;
  const bool is_known = ((kind == I && (fields(reader, out.emplace<I>()), true)) || ...);
  if (!is_known) throw Error(fmt::format("dist: there is no message of kind {}", kind));
  return out;
}

uint64_t word(const char* bytes, size_t n) {
  uint64_t out = 0;
  for (size_t i = 0; i < n; ++i) out |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return out;
}

}  // namespace

uint64_t mac(const Key& key, std::string_view bytes) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d, v2 = key[0] ^ 0x6c7967656e657261,
           v3 = key[1] ^ 0x7465646279746573;
  const auto rounds = [&](int n) {
    while (n-- > 0) {
      v0 += v1, v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1, v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](uint64_t m) {
    v3 ^= m;
    rounds(2);
    v0 ^= m;
  };
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) take(word(bytes.data() + at, 8));
  take(word(bytes.data() + whole, bytes.size() - whole) | uint64_t{bytes.size() & 0xff} << 56);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

Key key_of(std::string_view secret) { return {mac({1, 0}, secret), mac({2, 0}, secret)}; }

std::string new_secret() {
  uint64_t bits[2];
  if (getrandom(bits, sizeof bits, 0) != sizeof bits) throw Error("dist: the system has no random numbers");
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

std::string encode(const Message& message) {
  Writer body;
  body(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& m) { fields(body, m); }, message);
  Writer frame;
  frame(static_cast<uint32_t>(body.out.size()));
  return frame.out + body.out;
}

Message decode(std::string_view frame) {
  Reader reader(frame);
  uint8_t kind = 0;
  reader(kind);
  Message out = decode_as(kind, reader, std::make_index_sequence<std::variant_size_v<Message>>());
  if (!reader.at_end()) throw Error("dist: a message is longer than it says");
  return out;
}

size_t frame_length(const char* bytes) {
  const uint64_t length = word(bytes, 4);
  if (length == 0 || length > kMaxFrame) throw Error(fmt::format("dist: a frame of {} bytes", length));
  return length;
}

std::optional<Message> MessageStream::next() {
  if (rest_.size() < 4) return {};
  const size_t length = frame_length(rest_.data());
  if (rest_.size() < 4 + length) return {};
  Message out = decode(std::string_view(rest_).substr(4, length));
  rest_.erase(0, 4 + length);
  return out;
}

uint64_t proof_of(const Key& key, const Challenge& challenge, const Hello& hello) {
  Hello said = hello;
  said.proof = 0;
  return mac(key, "hello" + encode(challenge) + encode(said));
}

uint64_t proof_of_welcome(const Key& key, const Challenge& challenge, const Hello& hello) {
  return mac(key, "welcome" + encode(challenge) + encode(hello));
}

// Calls go from rank to rank as they lie in memory.
uint64_t wire_version() {
  const bool is_little = std::endian::native == std::endian::little;
  return kWireVersion << 32 | uint64_t{sizeof(Call)} << 1 | uint64_t{is_little};
}

}  // namespace tessera::dist
