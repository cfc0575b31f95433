// libtessera_gloo.so: Gloo's pairs and unbound buffers as GlooFunctions. It alone is linked with Gloo.
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/gloo_functions.h"

namespace {

using tessera::dist::GlooFunctions;
using Clock = std::chrono::steady_clock;
using gloo::transport::UnboundBuffer;

constexpr auto kConnect = std::chrono::seconds(120);  // in which the other side of a pair comes
constexpr auto kForever = std::chrono::hours(24 * 365);

thread_local std::string what;

/// While there is one, a write to a rank that has ended fails, and does not end this one: Gloo writes in the thread
/// that calls, too.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    if (sigismember(&before_, SIGPIPE)) return;
    const timespec none{};
    sigtimedwait(&pipe_, nullptr, &none);  // the one that came
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

/// fn(), or what it returns on failure.
template <class Result, class Fn>
Result guarded(Result on_failure, const Fn& fn) {
  const NoBrokenPipe none;
  try {
    return fn();
  } catch (const std::exception& e) {
    what = e.what();
    return on_failure;
  }
}

/// The signals are for other threads than those begun meanwhile.
template <class Fn>
auto without_signals(const Fn& fn) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const std::shared_ptr<void> back(nullptr, [&](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  return fn();
}

struct Message {
  std::unique_ptr<UnboundBuffer> buffer;
  bool is_out;
};

/// Ends waits whose time is over: Gloo's own limit would close all pairs.
class Alarm {
 public:
  static Alarm& get() {
    static Alarm* const alarm = new Alarm;  // never destroyed: its thread goes on
    return *alarm;
  }
  void set(const Message* message, Clock::time_point end) {
    const std::lock_guard lock(mutex_);
    waits_.emplace_back(message, end);
    changed_.notify_one();
  }
  void unset(const Message* message) {
    const std::lock_guard lock(mutex_);
    std::erase_if(waits_, [&](const auto& wait) { return wait.first == message; });
  }

 private:
  Alarm() {
    without_signals([this] { std::thread([this] { work(); }).detach(); });
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto first = std::min_element(waits_.begin(), waits_.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
      if (first == waits_.end()) {
        changed_.wait(lock);
      } else if (first->second > Clock::now()) {
        changed_.wait_until(lock, Clock::time_point(first->second));
      } else {
        first->first->is_out ? first->first->buffer->abortWaitSend() : first->first->buffer->abortWaitRecv();
        waits_.erase(first);
      }
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<const Message*, Clock::time_point>> waits_;
};

/// A thread of Gloo for each address.
std::shared_ptr<gloo::transport::Device> device_at(const std::string& address) {
  static std::mutex mutex;
  static auto* const devices = new std::map<std::string, std::shared_ptr<gloo::transport::Device>>;
  const std::lock_guard lock(mutex);
  auto& device = (*devices)[address];
  if (!device)
    device = without_signals(
        [&] { return gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str())); });
  return device;
}

using Context = std::shared_ptr<gloo::transport::Context>;
Context& as_context(void* context) { return *static_cast<Context*>(context); }

void* open(const char* address, int rank, int size) {
  return guarded<void*>(nullptr, [&] {
    Context made = device_at(address)->createContext(rank, size);
    made->setTimeout(kConnect);
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) made->createPair(peer);
    return new Context(std::move(made));
  });
}

size_t address(void* context, int peer, char* out) {
  return guarded<size_t>(0, [&] {
    const std::vector<char> bytes = as_context(context)->getPair(peer)->address().bytes();
    if (bytes.size() > GlooFunctions::kMostOfAddress) throw std::length_error("an address of Gloo is too long");
    std::copy(bytes.begin(), bytes.end(), out);
    return bytes.size();
  });
}

bool connect(void* context, int peer, const char* address, size_t bytes) {
  return guarded(false, [&] {
    as_context(context)->getPair(peer)->connect({address, address + bytes});
    return true;
  });
}

void* begin(void* context, void* data, size_t bytes, int peer, uint64_t lane, bool is_out) {
  return guarded<void*>(nullptr, [&] {
    auto message = std::make_unique<Message>(Message{as_context(context)->createUnboundBuffer(data, bytes), is_out});
    if (is_out) message->buffer->send(peer, lane);
    else message->buffer->recv(peer, lane);
    return message.release();
  });
}
void* send(void* context, void* data, size_t bytes, int peer, uint64_t lane) {
  return begin(context, data, bytes, peer, lane, true);
}
void* receive(void* context, void* data, size_t bytes, int peer, uint64_t lane) {
  return begin(context, data, bytes, peer, lane, false);
}

GlooFunctions::Waited wait(void* message, int milliseconds) {
  return guarded(GlooFunctions::Lost, [&] {
    auto* const m = static_cast<Message*>(message);
    Alarm::get().set(m, Clock::now() + std::chrono::milliseconds(milliseconds));
    const std::shared_ptr<void> unset(nullptr, [&](void*) { Alarm::get().unset(m); });
    const bool done = m->is_out ? m->buffer->waitSend(kForever) : m->buffer->waitRecv(kForever);
    return done ? GlooFunctions::Done : GlooFunctions::NotYet;
  });
}

void drop(void* message) { delete static_cast<Message*>(message); }
void close(void* context) { delete static_cast<Context*>(context); }
const char* error() { return what.c_str(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const GlooFunctions* tessera_gloo() {
  static constexpr GlooFunctions functions{
      GlooFunctions::kVersion, error, open, address, connect, send, receive, wait, drop, close};
  return &functions;
}
