// Signals that ask training to stop, and runs that a launcher began anew.
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

#include "tessera/trainer.h"

namespace tessera::train {
namespace {

std::atomic<int> caught{0};
std::atomic<bool> requested{false};
static_assert(std::atomic<int>::is_always_lock_free, "signal handlers may only touch lock-free atomics");

}  // namespace

std::atomic<bool>& stop_requested() { return requested; }
int caught_signal() { return caught; }

struct CaughtSignals::Before {
  struct sigaction interrupt {
  }, terminate{};
};

CaughtSignals::CaughtSignals() : before_(std::make_unique<Before>()) {
  struct sigaction action {};
  action.sa_handler = [](int number) {
    caught = number;
    requested = true;
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_->interrupt);
  sigaction(SIGTERM, &action, &before_->terminate);
}

CaughtSignals::~CaughtSignals() {
  sigaction(SIGINT, &before_->interrupt, nullptr);
  sigaction(SIGTERM, &before_->terminate, nullptr);
}

bool resumes(Resume resume, const std::string& checkpoint) {
  if (checkpoint.empty() || resume == Resume::Never) return resume == Resume::Always;
  struct stat file {};
  if (resume == Resume::Always) return true;
  if (stat(checkpoint.c_str(), &file) != 0) return false;
  if (resume == Resume::IfThere) return true;
  const char* const restarts = std::getenv("TESSERA_RESTART");
  const char* const launched = std::getenv("TESSERA_LAUNCHED");
  if (!restarts || std::string_view(restarts) == "0" || !launched) return false;
  return file.st_mtime >= std::strtoll(launched, nullptr, 10);  // an older one is of another run
}

}  // namespace tessera::train
