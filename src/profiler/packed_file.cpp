#include "profiler/packed_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

#include "tessera/error.h"

namespace tessera::profiler {
namespace {

constexpr size_t kPackedPiece = size_t{1} << 16;
constexpr int kGzip = 15 + 16;  // zlib's words for the largest window, and a gzip header

// AtomicFile throws Error; here every failure is one of a file.
template <class Do>
void as_file_error(const Do& run) {
  try {
    run();
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    throw FileError(error.what());
  }
}

// zlib takes pointers that are not const, and sizes of 32 bits.
void feed(z_stream& stream, std::string_view& bytes) {
  const size_t size = std::min<size_t>(bytes.size(), size_t{1} << 30);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(size);
  bytes.remove_prefix(size);
}

struct Unpacker {
  z_stream stream{};
  Unpacker() {
    if (inflateInit2(&stream, kGzip) != Z_OK) throw FileError("zlib could not be started");
  }
  ~Unpacker() { inflateEnd(&stream); }
};

}  // namespace

struct PackedFile::Packer {
  z_stream stream{};
  std::vector<char> piece = std::vector<char>(kPackedPiece);

  Packer() {
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
      throw FileError("zlib could not be started");
  }
  ~Packer() { deflateEnd(&stream); }

  void run(std::string_view text, int flush, AtomicFile& file) {
    do {
      feed(stream, text);
      do {
        stream.next_out = reinterpret_cast<Bytef*>(piece.data());
        stream.avail_out = static_cast<uInt>(piece.size());
        deflate(&stream, text.empty() ? flush : Z_NO_FLUSH);
        file.write(piece.data(), piece.size() - stream.avail_out);
      } while (stream.avail_out == 0);
    } while (!text.empty());
  }
};

PackedFile::PackedFile(const std::string& path) {
  as_file_error([&] { file_ = std::make_unique<AtomicFile>(path); });
  if (path.ends_with(".gz")) packer_ = std::make_unique<Packer>();
}

PackedFile::~PackedFile() = default;

void PackedFile::write(std::string_view text) {
  as_file_error([&] {
    if (packer_) packer_->run(text, Z_NO_FLUSH, *file_);
    else file_->write(text.data(), text.size());
  });
}

void PackedFile::commit() {
  as_file_error([&] {
    if (packer_) packer_->run({}, Z_FINISH, *file_);
    file_->commit();
  });
}

bool is_packed(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string unpack(std::string_view bytes, const std::string& file, size_t most) {
  Unpacker unpacker;
  z_stream& stream = unpacker.stream;
  const size_t size = bytes.size();
  std::string out;
  std::vector<char> piece(kPackedPiece);
  int status = Z_OK;
  for (bool full = false;;) {  // `full`: there may be more to come of the same bytes
    if (stream.avail_in == 0) feed(stream, bytes);
    if (stream.avail_in == 0 && !full) {
      if (status == Z_STREAM_END) return out;
      throw FileError(fmt::format("{}: the gzipped trace is cut short at byte {}", file, size));
    }
    // A gzip file may be several, one after the other.
    if (status == Z_STREAM_END && inflateReset(&stream) != Z_OK) throw FileError("zlib could not be started");
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      throw FileError(
          fmt::format("{}: the gzipped trace is damaged near byte {}", file, size - bytes.size() - stream.avail_in));
    out.append(piece.data(), piece.size() - stream.avail_out);
    if (out.size() > most) throw FileError(fmt::format("{}: unpacks to more than {} bytes", file, most));
    full = status != Z_STREAM_END && stream.avail_out == 0;
  }
}

}  // namespace tessera::profiler
