#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tessera/io.h"

namespace tessera {
namespace {

std::string failure(std::string_view what, const std::string& path, int error) {
  return fmt::format("cannot {} {}: {}", what, in_quotes(path), std::strerror(error));
}
[[noreturn]] void fail(std::string_view what, const std::string& path, int error) {
  throw FileError(failure(what, path, error));
}

struct Fd {
  int fd;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
};

int open_to_read(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("open", path, errno);
  return fd;
}

struct stat status_of(int fd, const std::string& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) fail("read", path, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  return status;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text.substr(0, 200)) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else out += c;
  }
  return out + (text.size() > 200 ? "...\"" : "\"");
}

std::string read_file(const std::string& path) {
  Fd file{open_to_read(path)};
  struct stat status = status_of(file.fd, path);
  std::string out;
  if (status.st_size > 0) out.reserve(static_cast<size_t>(status.st_size) + 1);
  for (;;) {  // not trusting st_size, so that pipes work and growing files end
    size_t have = out.size();
    out.resize(std::max<size_t>(out.capacity(), have + (1 << 16)));
    ssize_t n = ::read(file.fd, out.data() + have, out.size() - have);
    int error = errno;
    out.resize(have + (n > 0 ? static_cast<size_t>(n) : 0));
    if (n == 0) return out;
    if (n < 0 && error != EINTR) fail("read", path, error);
  }
}

void write_file(const std::string& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents.data(), contents.size());
  file.commit();
}

MappedFile::~MappedFile() {
  if (size) ::munmap(data, size);
}

void MappedFile::release_pages(const char* begin, size_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), offset = static_cast<size_t>(begin - data);
  const size_t first = (offset + page - 1) / page * page;
  size_t end = offset + bytes;
  if (end < size) end = end / page * page;  // the last page of the file is whole
  if (end > first) (void)::madvise(data + first, end - first, MADV_DONTNEED);
}

std::shared_ptr<MappedFile> map_file(const std::string& path) {
  Fd file{open_to_read(path)};
  struct stat status = status_of(file.fd, path);
  if (!S_ISREG(status.st_mode)) throw FileError(in_quotes(path) + " is not a regular file");
  auto out = std::make_shared<MappedFile>();
  if (status.st_size == 0) return out;
  void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                      file.fd, 0);
  if (data == MAP_FAILED) fail("map", path, errno);
  out->data = static_cast<char*>(data);
  out->size = static_cast<size_t>(status.st_size);
  return out;
}

std::shared_ptr<MappedFile> map_memory(size_t size) {
  auto out = std::make_shared<MappedFile>();
  if (size == 0) return out;
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw OutOfMemoryError(fmt::format("cannot map {} bytes: {}", size, std::strerror(errno)));
  out->data = static_cast<char*>(data);
  out->size = size;
  return out;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  for (;;) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) fail(errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      ::close(fd_);
      fd_ = -1;
      throw Error(in_quotes(path_) + " is being written by another process");
    }
    // Between open and lock the former owner may have renamed the file: then it is no longer ours to empty.
    struct stat mine, current;
    if (::fstat(fd_, &mine) == 0 && ::stat(temporary_.c_str(), &current) == 0 && mine.st_ino == current.st_ino &&
        mine.st_dev == current.st_dev)
      break;
    ::close(fd_);
  }
  if (::ftruncate(fd_, 0) != 0) {
    const int error = errno;
    ::close(fd_);
    fail(error);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(fd_);
}

void AtomicFile::fail(int error) const { throw Error(failure("write", path_, error)); }

void AtomicFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::write(fd_, p, std::min<size_t>(bytes, 1 << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno);
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0 && errno != EINVAL) fail(errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  ::close(fd_);
  fd_ = -1;
  std::string folder = std::filesystem::path(path_).parent_path().string();
  Fd directory{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  // Some file systems cannot sync a folder; the file itself is complete either way.
  if (directory.fd >= 0) (void)::fsync(directory.fd);
}

}  // namespace tessera
