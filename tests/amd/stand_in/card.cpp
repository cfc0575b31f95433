#include "card.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace stand_in {
namespace {

// Far from what either process has mapped, and from the address 1 << 44 that tests expect to be nobody's.
void* const place = reinterpret_cast<void*>(uintptr_t{3} << 44);

bool send(int file, const void* from, size_t bytes) {
  for (const char* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t done = write(file, at, bytes);
    if (done <= 0) return false;
    at += done, bytes -= done;
  }
  return true;
}

bool receive(int file, void* to, size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t done = ::read(file, at, bytes);
    if (done <= 0) return false;
    at += done, bytes -= done;
  }
  return true;
}

const char* from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

// A launch as emulator.py reads it; the kernel's name follows.
struct Request {
  uint64_t descriptor, arguments;
  Shape shape;
  uint32_t group_bytes, private_bytes, name_bytes;
};

}  // namespace

Card::Card() {
  file_ = memfd_create("card", 0);
  if (file_ < 0 || ftruncate(file_, code_bytes + memory_bytes) != 0) throw std::runtime_error("no memory for a card");
  void* at = mmap(place, code_bytes + memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file_, 0);
  if (at != place) throw std::runtime_error("the card's memory has no place");
  base_ = static_cast<std::byte*>(at);
  holes_[code_bytes] = memory_bytes;
}

void* Card::allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  bytes = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  for (auto [offset, size] : holes_) {
    if (size < bytes) continue;
    holes_.erase(offset);
    if (size > bytes) holes_[offset + bytes] = size - bytes;
    blocks_[base_ + offset] = bytes;
    return base_ + offset;
  }
  return nullptr;
}

bool Card::release(void* memory) {
  std::lock_guard lock(mutex_);
  const auto block = blocks_.find(memory);
  if (block == blocks_.end()) return false;
  auto hole = holes_.emplace(static_cast<std::byte*>(memory) - base_, block->second).first;
  blocks_.erase(block);
  const auto join = [&](auto left, auto right) {
    if (left->first + left->second != right->first) return right;
    left->second += right->second;
    holes_.erase(right);
    return left;
  };
  if (hole != holes_.begin()) hole = join(std::prev(hole), hole);
  if (auto next = std::next(hole); next != holes_.end()) join(hole, next);
  return true;
}

size_t Card::free_bytes() {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (auto [offset, size] : holes_) bytes += size;
  return bytes;
}

std::byte* Card::place_code(size_t bytes) {
  std::lock_guard lock(mutex_);
  const size_t at = code_used_;
  code_used_ += (bytes + 4095) / 4096 * 4096;
  if (code_used_ > code_bytes) throw std::runtime_error("too much code for the card");
  return base_ + at;
}

bool Card::executes() { return *from_environment("EMULATOR_HOME", ""); }

// The emulator in a process of its own: requests in 3, replies in 4, the card's memory in 5.
void Card::start() {
  int requests[2], replies[2];
  if (pipe2(requests, O_CLOEXEC) != 0 || pipe2(replies, O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
  signal(SIGPIPE, SIG_IGN);  // an emulator that ended is an error of the launch
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  int far[3];  // away from the numbers that they get, none of which may be overwritten before its turn
  for (int i = 0; int file : {requests[0], replies[1], file_}) far[i++] = fcntl(file, F_DUPFD_CLOEXEC, 16);
  for (int i = 0; i < 3; ++i) posix_spawn_file_actions_adddup2(&files, far[i], 3 + i);
  const std::string base = std::to_string(reinterpret_cast<uintptr_t>(base_)), code = std::to_string(code_bytes),
                    memory = std::to_string(code_bytes + memory_bytes);
  const char* python = from_environment("TESSERA_EMULATOR_PYTHON", "python3");
  const char* arguments[] = {python,         TESSERA_EMULATOR, TESSERA_WAVE_LOOP, base.c_str(), code.c_str(),
                             memory.c_str(), nullptr};
  pid_t child;
  const int failed = posix_spawnp(&child, python, &files, nullptr, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&files);
  for (int file : {far[0], far[1], far[2], requests[0], replies[1]}) close(file);
  if (failed) throw std::runtime_error(std::string("cannot start ") + python);
  requests_ = requests[1];
  replies_ = replies[0];
}

std::string Card::run(const Kernel& kernel, const Shape& shape, const std::vector<std::byte>& arguments) {
  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  if (requests_ < 0) start();
  void* there = allocate(arguments.size());
  if (!there) return "no memory for the arguments";
  std::memcpy(there, arguments.data(), arguments.size());
  const Request request{kernel.descriptor,    reinterpret_cast<uint64_t>(there),        shape, kernel.group_bytes,
                        kernel.private_bytes, static_cast<uint32_t>(kernel.name.size())};
  uint32_t length = 0;
  std::string reply;
  if (!send(requests_, &request, sizeof request) || !send(requests_, kernel.name.data(), kernel.name.size()) ||
      !receive(replies_, &length, sizeof length))
    reply = "the emulator ended";
  else if (length > 0) {
    reply.resize(length);
    if (!receive(replies_, reply.data(), length)) reply = "the emulator ended";
  }
  if (reply == "the emulator ended") {  // the kernel went where no memory is; the next launch starts another
    close(requests_), close(replies_);
    requests_ = replies_ = -1;
  }
  release(there);
  return reply;
}

Card& card() {
  static Card* one = new Card;  // outlives the plugin's own destructors
  return *one;
}

}  // namespace stand_in
