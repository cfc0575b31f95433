#include "dist/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/util/processors.h"
#include "tessera/error.h"

namespace tessera::dist {
namespace {

constexpr int kSpins = 2000, kYields = 200;  // some 40 us, then as long as others take to get as far

Error failure(const char* what) { return Error(fmt::format("shared memory: {}: {}", what, std::strerror(errno))); }

char* map(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) throw failure("mmap");
  return static_cast<char*>(data);
}

// Futexes of a file's pages: other processes wait for the same one.
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

SharedMemory SharedMemory::create(size_t bytes) {
  const int fd = memfd_create("tessera", MFD_CLOEXEC);
  if (fd < 0) throw failure("memfd_create");
  SharedMemory out(fd, nullptr, bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw failure("ftruncate");
  out.data_ = map(fd, bytes);
  return out;
}

SharedMemory SharedMemory::open(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) throw failure("fstat");
  SharedMemory out(fd, nullptr, static_cast<size_t>(info.st_size));
  out.data_ = map(fd, out.bytes_);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return out;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

void SharedMemory::inherit() const {
  if (fcntl(fd_, F_SETFD, 0) != 0) throw failure("fcntl");
}

void copy_to_others(char* to, const char* from, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kFew = 2048, kVector = sizeof(__m128i);
  if (bytes >= kFew) {
    const size_t head = (kVector - reinterpret_cast<uintptr_t>(to) % kVector) % kVector;
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= kVector; to += kVector, from += kVector, bytes -= kVector)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    _mm_sfence();
  }
#endif
  std::memcpy(to, from, bytes);
}

void Counter::advance_to(uint32_t next) {
  value.store(next);  // ordered before the look at sleepers, or one could sleep through it
  if (sleepers.load() > 0) futex(&value, FUTEX_WAKE, INT32_MAX, nullptr);
}

void Counter::wait_for(uint32_t target, bool is_crowded, const std::function<void()>& look) {
  for (int i = 0; i < kSpins && !is_crowded; ++i) {
    if (reached(target)) return;
    relax();
  }
  // On a busy machine a yield may take as long as others' turns.
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kYields && !is_crowded; ++i) {
    if (reached(target)) return;
    sched_yield();
    if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(2)) break;
  }
  struct Sleeper {
    std::atomic<uint32_t>& count;
    explicit Sleeper(std::atomic<uint32_t>& c) : count(c) { ++count; }
    ~Sleeper() { --count; }
  } sleeper(sleepers);
  constexpr timespec kMoment{0, 100'000'000};
  while (!reached(target)) {
    look();
    const uint32_t now = value.load();
    if (static_cast<int32_t>(now - target) < 0) futex(&value, FUTEX_WAIT, now, &kMoment);
  }
}

}  // namespace tessera::dist
