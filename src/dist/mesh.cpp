#include "dist/mesh.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::dist {
namespace {

constexpr double kReach = 30;  // seconds in which a rank that is there must be reached
constexpr int kAttempts = 5;

}  // namespace

Mesh::Mesh(std::shared_ptr<Control> control, int rank)
    : control_(std::move(control)), rank_(rank), door_(Socket::listen(0), control_->hosts().key) {
  control_->place(rank).address = kThisHost;  // others of this host read it; the hub tells the rest where this host is
  control_->place(rank).port.store(static_cast<uint16_t>(door_.port()), std::memory_order_release);
  thread_ = thread_without_signals([this] { work(); });
}

Mesh::~Mesh() {
  is_leaving_ = true;
  work_.ring();
  thread_.join();
}

void Mesh::work() {
  while (!is_leaving_) {
    std::vector<int> fds{work_.fd()};
    door_.add_to(fds);
    wait_readable(fds, 1);
    door_.step(
        [&](const Hello& hello) {
          if (hello.from < 0 || hello.from >= control_->ranks())
            throw Error(fmt::format("there is no rank {}", hello.from));
        },
        [&](Channel&& channel, const Hello& hello) {
          const std::lock_guard lock(mutex_);
          waiting_[{hello.group, hello.from, static_cast<Purpose>(hello.purpose)}] = channel.release();
          came_.notify_all();
        });
  }
}

Socket Mesh::open(int to, uint64_t group, Purpose purpose) {
  const Place& place = control_->place(to);
  const int64_t began = now_ns();
  const Control::Waiting waiting(*control_, rank_, to, began);
  while (place.port.load(std::memory_order_acquire) == 0) {
    control_->look(began, rank_, to);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Hello hello;
  hello.group = group;
  hello.from = rank_;
  hello.purpose = static_cast<uint8_t>(purpose);
  for (int attempt = 1;; ++attempt) try {
      return knock(place.address, place.port, control_->hosts().key, hello, kReach).release();
    } catch (const ConnectionClosed& e) {
      if (attempt == kAttempts) not_reached(to, e);
      control_->look(began, rank_, to);  // who was slow to say who it is was taken for a stranger
    } catch (const Error& e) {
      not_reached(to, e);
    }
}

void Mesh::not_reached(int rank, const Error& e) const {
  control_->check();
  control_->abort(fmt::format("rank {} does not reach rank {}: {}", rank_, rank, e.what()));
  control_->check();
  throw e;
}

Socket Mesh::take(int from, uint64_t group, Purpose purpose) {
  const int64_t began = now_ns();
  const Control::Waiting waiting(*control_, rank_, from, began);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto found = waiting_.find({group, from, purpose}); found != waiting_.end()) {
      Socket out = std::move(found->second);
      waiting_.erase(found);
      return out;
    }
    control_->look(began, rank_, from);
    came_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

}  // namespace tessera::dist
