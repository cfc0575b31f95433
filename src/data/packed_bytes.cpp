#include "data/packed_bytes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include "tessera/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

// FIPS 180-4. Nobody is kept out by it here: it finds damage.
class Sha1 {
 public:
  static std::string of(std::string_view bytes) {
    Sha1 hash;
    const size_t whole = bytes.size() / 64 * 64;
    for (size_t at = 0; at < whole; at += 64) hash.block(bytes.data() + at);
    std::string last(bytes.substr(whole));
    last += '\x80';
    last.append((120 - last.size() % 64) % 64, '\0');
    const uint64_t bits = bytes.size() * 8;
    for (int shift = 56; shift >= 0; shift -= 8) last += static_cast<char>(bits >> shift);
    for (size_t at = 0; at < last.size(); at += 64) hash.block(last.data() + at);
    return fmt::format("{:08x}", fmt::join(hash.state_, ""));
  }

 private:
  void block(const char* data) {
    uint32_t w[80];
    for (int i = 0; i < 16; ++i) {
      uint32_t word;
      std::memcpy(&word, data + 4 * i, 4);
      w[i] = __builtin_bswap32(word);
    }
    for (int i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    auto [a, b, c, d, e] = state_;
    const auto rounds = [&](int from, uint32_t constant, auto mix) {
      for (int i = from; i < from + 20; ++i) {
        const uint32_t next = std::rotl(a, 5) + mix(b, c, d) + e + constant + w[i];
        e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
      }
    };
    const auto parity = [](uint32_t x, uint32_t y, uint32_t z) { return x ^ y ^ z; };
    rounds(0, 0x5a827999, [](uint32_t x, uint32_t y, uint32_t z) { return (x & y) | (~x & z); });
    rounds(20, 0x6ed9eba1, parity);
    rounds(40, 0x8f1bbcdc, [](uint32_t x, uint32_t y, uint32_t z) { return (x & y) | (x & z) | (y & z); });
    rounds(60, 0xca62c1d6, parity);
    const uint32_t added[] = {a, b, c, d, e};
    for (int i = 0; i < 5; ++i) state_[i] += added[i];
  }

  std::array<uint32_t, 5> state_ = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
};

std::string digits(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

struct NamedHash {
  std::string_view name;
  std::string (*of)(std::string_view bytes);
};
constexpr NamedHash kHashes[] = {
    {"xxh3_64", [](std::string_view b) { return fmt::format("{:016x}", XXH3_64bits(b.data(), b.size())); }},
    {"xxh3_128", [](std::string_view b) { return digits(XXH3_128bits(b.data(), b.size())); }},
    {"xxh128", [](std::string_view b) { return digits(XXH3_128bits(b.data(), b.size())); }},
    {"xxh64", [](std::string_view b) { return fmt::format("{:016x}", XXH64(b.data(), b.size(), 0)); }},
    {"xxh32", [](std::string_view b) { return fmt::format("{:08x}", XXH32(b.data(), b.size(), 0)); }},
    {"sha1", Sha1::of},
};

const NamedHash* find_hash(std::string_view name) {
  const auto* found = std::find_if(std::begin(kHashes), std::end(kHashes), [&](auto& h) { return h.name == name; });
  return found == std::end(kHashes) ? nullptr : found;
}

constexpr int kGzip = 16;  // of zlib's window sizes: a gzip file

std::string compress_gz(int level, std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, MAX_WBITS + kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw Error("gz: cannot begin to compress");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw Error("gz: cannot compress");
  return out;
}

// With a checksum, which ZSTD_compress() leaves out.
std::string compress_zstd(int level, std::string_view bytes) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  if (!context) throw Error("zstd: cannot begin to compress");
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size)) throw Error(fmt::format("zstd: cannot compress: {}", ZSTD_getErrorName(size)));
  out.resize(size);
  return out;
}

// What is wrong, or null.
const char* decompress_gz(std::string_view bytes, char* out, size_t size) {
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + kGzip) != Z_OK) return "zlib cannot begin";
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(size);
  const int result = inflate(&stream, Z_FINISH);
  const bool whole = stream.avail_in == 0 && stream.avail_out == 0;
  inflateEnd(&stream);
  if (result == Z_DATA_ERROR) return "damaged gz data";
  return result == Z_STREAM_END && whole ? nullptr : "gz data of another size";
}

const char* decompress_zstd(std::string_view bytes, char* out, size_t size) {
  const size_t got = ZSTD_decompress(out, size, bytes.data(), bytes.size());
  if (ZSTD_isError(got)) return ZSTD_getErrorName(got);
  return got == size ? nullptr : "zstd data of another size";
}

}  // namespace

bool is_known_hash(std::string_view algorithm) { return find_hash(algorithm); }

std::string known_hashes() {
  std::string out;
  for (const NamedHash& hash : kHashes) out += (out.empty() ? "" : ", ") + std::string(hash.name);
  return out;
}

std::string hash_of(std::string_view algorithm, std::string_view bytes) {
  const NamedHash* hash = find_hash(algorithm);
  if (!hash) throw Error(fmt::format("unknown hash {}, not of: {}", in_quotes(algorithm), known_hashes()));
  return hash->of(bytes);
}

Compression parse_compression(std::string_view text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const bool zstd = name == "zstd";
  if (!zstd && name != "gz") throw Error(fmt::format("unknown compression {}, not of: zstd, gz", in_quotes(text)));
  Compression out{std::string(name), zstd ? 3 : 9};
  if (colon == text.npos) return out;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, out.level);
  if (error != std::errc() || end != last || out.level < (zstd ? 1 : 0) || out.level > (zstd ? 22 : 9))
    throw Error(fmt::format("compression {}: levels are 1 to 22 of zstd, 0 to 9 of gz", in_quotes(text)));
  return out;
}

std::string compress(const Compression& compression, std::string_view bytes) {
  if (compression.name == "gz") return compress_gz(compression.level, bytes);
  return compress_zstd(compression.level, bytes);
}

std::shared_ptr<MappedFile> decompress(const Compression& compression, std::string_view bytes, size_t size) {
  if (std::max(bytes.size(), size) > UINT32_MAX) throw FileError("more than 4 GiB");
  auto out = map_memory(size);  // takes memory as it is filled, whatever `size` says
  const char* wrong =
      compression.name == "gz" ? decompress_gz(bytes, out->data, size) : decompress_zstd(bytes, out->data, size);
  if (wrong) throw FileError(fmt::format("cannot decompress {} bytes to {}: {}", bytes.size(), size, wrong));
  return out;
}

}  // namespace tessera
