// Reading, mapping and atomically writing files.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

/// `text` in quotes for a message of one line: control characters escaped, long text shortened.
std::string in_quotes(std::string_view text);

/// A private mapping of a whole file, or of memory: writes to it do not reach the file.
struct MappedFile {
  char* data = nullptr;
  size_t size = 0;
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();
  /// Gives memory back; what is read later comes from the file again. Nothing may have been written.
  void release_pages() { release_pages(data, size); }
  /// The same of the whole pages within a part.
  void release_pages(const char* begin, size_t bytes);
};
/// Throws FileError if `path` is no readable regular file.
std::shared_ptr<MappedFile> map_file(const std::string& path);
/// Zeros, which take memory as they are written to. Throws OutOfMemoryError.
std::shared_ptr<MappedFile> map_memory(size_t size);

/// Becomes `path` on commit(); until then it is `path`.tmp, which the destructor removes.
class AtomicFile {
 public:
  /// Throws Error if it cannot be created or another process is writing it.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Throws Error, for example when the disk is full.
  void write(const void* data, size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;
  std::string path_, temporary_;
  int fd_ = -1;
};

}  // namespace tessera
