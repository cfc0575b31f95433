#include "data/download.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <random>
#include <thread>

#include "data/curl_library.h"
#include "tessera/error.h"
#include "tessera/interrupt.h"

namespace tessera {
namespace {

constexpr size_t kErrorBody = 1 << 12, kCurlErrorText = 256;
constexpr const char*
    kNothingHashed =  // SHA-256 of no bytes, those of a request: old versions do not say it themselves
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
thread_local const DownloadsEnd* innermost = nullptr;

constexpr double kFirstPause = 0.5, kLongestPause = 8, kRounding = 0.01;  // seconds

/// An open connection, kept for the next file.
class Connection {
 public:
  Connection() : curl_(curl_library()), easy_(curl_.init()) {
    if (!easy_) throw Error("libcurl cannot begin");
  }
  ~Connection() { curl_.cleanup(easy_); }
  Connection(const Connection&) = delete;

  /// What one attempt came to.
  struct Outcome {
    enum Kind { Done, Again, Damaged, Missing, Refused } kind;
    std::string why = {};
  };
  Outcome get(const Store& store, const std::string& url, const Patience& patience, Receiver& receiver);
  const pid_t owner = getpid();

 private:
  template <class T>
  void set(CurlLibrary::Option option, T value) {
    const int result = curl_.setopt(easy_, option, value);
    if (result == CurlLibrary::unknown_option || result == CurlLibrary::not_built_in)
      throw Error(fmt::format("libcurl is too old, or lacks an option ({})", static_cast<int>(option)));
  }
  void sign(const Store& store);
  static size_t receive(char* data, size_t size, size_t count, void* connection);
  static int is_stopped(void* connection, int64_t, int64_t, int64_t, int64_t);
  Outcome judge(int result, const Patience& patience);

  const CurlLibrary& curl_;
  CurlLibrary::Easy easy_;
  std::unique_ptr<CurlLibrary::List, void (*)(CurlLibrary::List*)> headers_{nullptr, curl_.free_list};
  char error_[kCurlErrorText] = "";

  // Of the attempt at hand.
  Receiver* receiver_ = nullptr;
  const Patience* patience_ = nullptr;
  std::string body_;  // of an answer that is no file
  std::exception_ptr thrown_;
};

size_t Connection::receive(char* data, size_t size, size_t count, void* connection) {
  auto& self = *static_cast<Connection*>(connection);
  const std::string_view bytes(data, size * count);
  try {
    long code = 0;
    self.curl_.getinfo(self.easy_, CurlLibrary::kResponseCode, &code);
    if (code == 200) self.receiver_->take(bytes);
    else self.body_.append(bytes.substr(0, kErrorBody - std::min(kErrorBody, self.body_.size())));
    return bytes.size();
  } catch (...) {  // not through a library of C
    self.thrown_ = std::current_exception();
    return bytes.size() + 1;
  }
}

int Connection::is_stopped(void* connection, int64_t, int64_t, int64_t, int64_t) {
  auto& self = *static_cast<Connection*>(connection);
  try {
    return self.patience_->is_stopped();
  } catch (...) {
    self.thrown_ = std::current_exception();
    return 1;
  }
}

void Connection::sign(const Store& store) {
  headers_.reset();
  if (store.key.empty()) return;
  const std::string what = fmt::format("aws:amz:{}:s3", store.region);
  set(CurlLibrary::aws_sigv4, what.c_str());
  set(CurlLibrary::user_name, store.key.c_str());
  set(CurlLibrary::password, store.secret.c_str());
  headers_.reset(curl_.append(nullptr, kNothingHashed));
  if (!store.session.empty()) {
    const std::string header = "x-amz-security-token: " + store.session;
    headers_.reset(curl_.append(headers_.release(), header.c_str()));
  }
  set(CurlLibrary::headers, headers_.get());
}

Connection::Outcome Connection::get(const Store& store, const std::string& url, const Patience& patience,
                                    Receiver& receiver) {
  curl_.reset(easy_);
  receiver_ = &receiver;
  patience_ = &patience;
  body_.clear();
  thrown_ = nullptr;
  error_[0] = '\0';
  const long milliseconds = std::max(1L, static_cast<long>(1e3 * patience.left()));
  set(CurlLibrary::url, url.c_str());
  set(CurlLibrary::error_buffer, error_);
  set(CurlLibrary::write_function, &Connection::receive);
  set(CurlLibrary::write_data, this);
  set(CurlLibrary::no_progress, 0L);
  set(CurlLibrary::progress_function, &Connection::is_stopped);
  set(CurlLibrary::progress_data, this);
  set(CurlLibrary::no_signals, 1L);
  set(CurlLibrary::path_as_is, 1L);
  for (const char* variable : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"})  // which the curl command knows, but not its library
    if (const std::string file = environment_variable(variable); !file.empty()) {
      set(CurlLibrary::ca_file, file.c_str());
      break;
    }
  set(CurlLibrary::user_agent, "tessera");
  const long kinds = url.starts_with("https") ? CurlLibrary::kHttps : CurlLibrary::kHttp | CurlLibrary::kHttps;
  set(CurlLibrary::protocols, kinds);
  set(CurlLibrary::redirect_protocols, kinds);        // never from https to http
  set(CurlLibrary::follow, store.is_s3() ? 0L : 1L);  // a signature is of one host
  set(CurlLibrary::most_redirects, 5L);
  set(CurlLibrary::timeout_ms, milliseconds);
  set(CurlLibrary::connect_timeout_ms, std::min(milliseconds, std::max(1L, static_cast<long>(1e3 * patience.stall))));
  set(CurlLibrary::low_speed_limit, 1L);
  set(CurlLibrary::low_speed_time, std::max(1L, static_cast<long>(patience.stall)));
  sign(store);
  receiver.begin();
  try {
    const Outcome outcome = judge(curl_.perform(easy_), patience);
    if (outcome.kind == Outcome::Done) receiver.finish();
    return outcome;
  } catch (const FileError& e) {
    return {Outcome::Damaged, e.what()};
  }
}

Connection::Outcome Connection::judge(int result, const Patience& patience) {
  if (thrown_) std::rethrow_exception(thrown_);
  long code = 0;
  curl_.getinfo(easy_, CurlLibrary::kResponseCode, &code);
  switch (result) {
    case CurlLibrary::ok:
      break;
    case CurlLibrary::stopped:
      return {Outcome::Refused, "the download was ended"};
    case CurlLibrary::timed_out:
      return {Outcome::Again,
              patience.left() <= kRounding ? "no end of it" : fmt::format("nothing came for {} s", patience.stall)};
    case CurlLibrary::unsupported_protocol:
    case CurlLibrary::bad_url:
    case CurlLibrary::too_many_redirects:
    case CurlLibrary::bad_certificate:
    case CurlLibrary::bad_ca_file:
      return {Outcome::Refused, *error_ ? error_ : curl_.error_text(result)};
    default:
      return {Outcome::Again, *error_ ? error_ : curl_.error_text(result)};
  }
  if (code == 200) return {Outcome::Done};
  std::string why = fmt::format("the server answers {}", code);
  if (const std::string named = s3_error_code(body_); !named.empty()) why += fmt::format(" ({})", named);
  if (code == 404 || code == 410) return {Outcome::Missing, why};
  const bool passes = code >= 500 || code == 408 || code == 425 || code == 429;
  return {passes ? Outcome::Again : Outcome::Refused, why};
}

// Of one line, whatever libcurl says.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32) c = ' ';
  return text;
}

}  // namespace

Patience::Patience(const RemoteOptions& options, const std::atomic<bool>* stop_flag)
    : attempts(options.attempts),
      stall(options.stall),
      deadline(options.deadline),
      until(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline))),
      stop(stop_flag),
      on_wait(options.on_wait) {}

DownloadsEnd::DownloadsEnd(std::function<bool()> over) : over_(std::move(over)), outer_(innermost) { innermost = this; }
DownloadsEnd::~DownloadsEnd() { innermost = outer_; }
bool DownloadsEnd::is_now() const { return over_() || (outer_ && outer_->is_now()); }

bool Patience::is_stopped() const {
  if (innermost && innermost->is_now()) return true;
  if (!stop) check_interrupt();  // a background thread is stopped by its owner instead
  return stop && *stop;
}

bool Patience::wait(double seconds) const {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < end) {
    if (is_stopped() || left() <= 0) return false;
    std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), std::chrono::milliseconds(50)));
  }
  return true;
}

void download(const Store& store, const std::string& file, const Patience& patience, Receiver& receiver) {
  thread_local std::unique_ptr<Connection> connection;
  const std::string name = store.name_of(file), url = store.url_of(file);
  if (connection && connection->owner != getpid())
    static_cast<void>(connection.release());  // its socket is the parent's
  if (!connection) {
    try {
      connection = std::make_unique<Connection>();
    } catch (const Error& e) {
      throw FileError(fmt::format("{}: {}", name, e.what()));
    }
  }
  using Outcome = Connection::Outcome;
  thread_local std::minstd_rand random(std::random_device{}());  // ranks that failed together do not come back together
  double pause = kFirstPause;
  int damaged = 0;
  for (int attempt = 1;; ++attempt) {
    const Outcome outcome = connection->get(store, url, patience, receiver);
    if (outcome.kind == Outcome::Done) return;
    std::string why = one_line(outcome.why);
    if (why.starts_with(name + ": ")) why.erase(0, name.size() + 2);
    if (outcome.kind == Outcome::Missing) throw MissingFile(fmt::format("{}: is not there: {}", name, why));
    if (outcome.kind == Outcome::Refused) throw FileError(fmt::format("{}: {}", name, why));
    if (outcome.kind == Outcome::Damaged && ++damaged == 2) throw FileError(fmt::format("{}: {}, twice", name, why));
    const double before = std::uniform_real_distribution(0.5 * pause, pause)(random);
    if (patience.is_stopped()) throw FileError(name + ": the download was ended");
    if (patience.left() <= before)
      throw FileError(
          fmt::format("{}: {}; not there after {} s and attempt {}", name, why, patience.deadline, attempt));
    if (attempt >= patience.attempts)
      throw FileError(fmt::format("{}: {}{}", name, why, attempt > 1 ? fmt::format(", in attempt {}", attempt) : ""));
    if (patience.on_wait)
      patience.on_wait(
          fmt::format("waiting for {}: {}; attempt {} of {} follows", name, why, attempt + 1, patience.attempts));
    patience.wait(before);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace tessera
