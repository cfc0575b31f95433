#include "dist/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "dist/control.h"

namespace tessera::dist {
namespace {

constexpr double kIntroduction = 5;  // seconds that a stranger has
constexpr size_t kStrangers = 256;   // at once
constexpr double kTaking = 4;        // seconds in which a message must go

double clock_s() { return static_cast<double>(now_ns()) * 1e-9; }

/// An address as the system has it, in the family that it belongs to.
struct SystemAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

bool is_v4(const HostAddress& address) {
  constexpr uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(std::begin(prefix), std::end(prefix), address.begin());
}

SystemAddress system_address(const HostAddress& address, int port) {
  SystemAddress out;
  if (is_v4(address)) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&v4.sin_addr, address.data() + 12, 4);
    out.length = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&v6.sin6_addr, address.data(), 16);
    out.length = sizeof v6;
  }
  return out;
}

HostAddress host_address(const sockaddr* from) {
  HostAddress out{};
  if (from->sa_family == AF_INET6) {
    std::memcpy(out.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, 16);
  } else if (from->sa_family == AF_INET) {
    out[10] = out[11] = 0xff;
    std::memcpy(out.data() + 12, &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
  }
  return out;
}

void set_quick(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Socket listen_as(int family, int port) {
  Socket out(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!out) return out;
  const int on = 1, off = 0;
  setsockopt(out.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) setsockopt(out.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  HostAddress any{};
  if (family == AF_INET) any[10] = any[11] = 0xff;
  SystemAddress address = system_address(any, port);
  if (bind(out.fd(), address.get(), address.length) != 0 || ::listen(out.fd(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) throw Error(fmt::format("dist: port {} is in use", port));
    if (errno == EACCES) throw Error(fmt::format("dist: port {} is not for this user", port));
    return Socket();
  }
  return out;
}

HostAddress name_of_socket(int fd, decltype(getpeername)* get) {
  SystemAddress address;
  address.length = sizeof address.storage;
  return get(fd, address.get(), &address.length) == 0 ? host_address(address.get()) : HostAddress{};
}

uint64_t new_nonce() {
  uint64_t out = 0;
  if (getrandom(&out, sizeof out, 0) != sizeof out) throw Error("dist: the system has no random numbers");
  return out;
}

bool wait_for(int fd, short events, double seconds) {
  pollfd p{fd, events, 0};
  return poll(&p, 1, std::max(0, static_cast<int>(seconds * 1e3))) > 0;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket Socket::listen(int port) {
  Socket out = listen_as(AF_INET6, port);
  if (!out) out = listen_as(AF_INET, port);  // a system without IPv6
  if (!out) throw Error(fmt::format("dist: cannot listen at port {}: {}", port, std::strerror(errno)));
  return out;
}

int Socket::port() const {
  SystemAddress address;
  address.length = sizeof address.storage;
  if (getsockname(fd_, address.get(), &address.length) != 0) return 0;
  return ntohs(address.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(address.storage).sin_port);
}

Socket Socket::accept() const {
  Socket out(accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (out) set_quick(out.fd());
  return out;
}

Socket Socket::connect(const HostAddress& address, int port, double seconds) {
  SystemAddress to = system_address(address, port);
  Socket out(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto failed = [&](int code) {
    return Error(fmt::format("dist: cannot reach {} port {}: {}", to_string(address), port, std::strerror(code)));
  };
  if (!out) throw failed(errno);
  set_quick(out.fd());
  if (::connect(out.fd(), to.get(), to.length) == 0) return out;
  if (errno != EINPROGRESS) throw failed(errno);
  if (!wait_for(out.fd(), POLLOUT, seconds)) throw failed(ETIMEDOUT);
  int code = 0;
  socklen_t size = sizeof code;
  if (getsockopt(out.fd(), SOL_SOCKET, SO_ERROR, &code, &size) != 0 || code != 0) throw failed(code);
  return out;
}

HostAddress Socket::peer() const { return name_of_socket(fd_, getpeername); }
HostAddress Socket::local() const { return name_of_socket(fd_, getsockname); }

std::vector<bool> wait_readable(const std::vector<int>& fds, double seconds) {
  std::vector<pollfd> all;
  for (const int fd : fds) all.push_back({fd, POLLIN, 0});
  poll(all.data(), all.size(), std::max(0, static_cast<int>(seconds * 1e3)));
  std::vector<bool> out;
  for (const pollfd& p : all) out.push_back(p.revents != 0);
  return out;
}

std::vector<HostAddress> resolve(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) throw Error(fmt::format("dist: there is no host {}: {}", host, gai_strerror(code)));
  std::vector<HostAddress> out;
  for (const addrinfo* at = found; at; at = at->ai_next)
    if (at->ai_family == AF_INET || at->ai_family == AF_INET6) out.push_back(host_address(at->ai_addr));
  freeaddrinfo(found);
  return out;
}

std::string to_string(const HostAddress& address) {
  char text[NI_MAXHOST] = "?";
  SystemAddress as = system_address(address, 0);
  getnameinfo(as.get(), as.length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool is_loopback(const HostAddress& address) {
  HostAddress one{};
  one[15] = 1;
  return address == one || (is_v4(address) && address[12] == 127);
}

Bell::Bell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw Error(fmt::format("dist: eventfd: {}", std::strerror(errno)));
}
Bell::~Bell() { close(fd_); }
void Bell::ring() const { eventfd_write(fd_, 1); }
void Bell::hush() const {
  eventfd_t count;
  eventfd_read(fd_, &count);
}

std::thread thread_without_signals(std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread out(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return out;
}

// As errno says why.
[[noreturn]] static void refuse_message(const char* what) {
  const std::string why = fmt::format("dist: a message {}: {}", what, std::strerror(errno));
  if (errno == EPIPE || errno == ECONNRESET) throw ConnectionClosed(why);
  throw Error(why);
}

void Channel::send(const Message& message) const {
  const std::string bytes = encode(message);
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(fd(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n > 0) at += static_cast<size_t>(n);
    else if (errno != EINTR && (errno != EAGAIN || !wait_for(fd(), POLLOUT, kTaking))) refuse_message("was not taken");
  }
}

bool Channel::receive() {
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = ::recv(fd(), buffer, sizeof buffer, 0);
    if (n > 0) stream_.feed({buffer, static_cast<size_t>(n)});
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    else if (errno == EAGAIN) return true;
  }
}

Message Channel::wait(double seconds, const std::string& whom) const {
  const double until = clock_s() + seconds;
  const auto read = [&](char* out, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
      const ssize_t n = ::recv(fd(), out + at, bytes - at, 0);
      if (n > 0) at += static_cast<size_t>(n);
      else if (n == 0) throw ConnectionClosed("dist: the connection was closed");
      else if (errno != EAGAIN && errno != EINTR) refuse_message("did not come");
      else if (!wait_for(fd(), POLLIN, until - clock_s()) && clock_s() >= until)
        throw Error(fmt::format("dist: {} says nothing for {:.3g} s", whom, seconds));
    }
  };
  char length[4];
  read(length, sizeof length);
  std::string frame(frame_length(length), '\0');
  read(frame.data(), frame.size());
  return decode(frame);
}

Channel knock(const HostAddress& address, int port, const Key& key, Hello hello, double seconds) {
  Channel channel(Socket::connect(address, port, seconds));
  const auto at = [&] { return fmt::format("{} port {}", to_string(address), port); };
  const Message first = channel.wait(seconds, at());
  const auto* const challenge = std::get_if<Challenge>(&first);
  if (!challenge) throw Error(fmt::format("dist: {} does not speak as Tessera does", at()));
  if (challenge->version != wire_version()) throw Error(fmt::format("dist: {} is of another version", at()));
  hello.nonce = new_nonce();
  hello.proof = proof_of(key, *challenge, hello);
  channel.send(hello);
  const Message answer = channel.wait(seconds, at());
  if (const auto* refused = std::get_if<Refused>(&answer))
    throw Error(fmt::format("dist: {} refuses: {}", at(), refused->why));
  const auto* const welcome = std::get_if<Welcome>(&answer);
  if (!welcome || welcome->proof != proof_of_welcome(key, *challenge, hello))
    throw Error(fmt::format("dist: {} does not know the secret", at()));
  return channel;
}

void Door::add_to(std::vector<int>& fds) const {
  fds.push_back(listener_.fd());
  for (const Stranger& s : strangers_) fds.push_back(s.channel.fd());
}

void Door::step(const Check& check, const Enter& enter) {
  while (Socket next = listener_.accept()) {
    if (strangers_.size() >= kStrangers) continue;
    Stranger stranger{Channel(std::move(next)), {wire_version(), new_nonce()}, clock_s()};
    try {
      stranger.channel.send(stranger.challenge);
      strangers_.push_back(std::move(stranger));
    } catch (const Error&) {
    }
  }
  std::erase_if(strangers_, [&](Stranger& s) { return hear(s, check, enter); });
}

bool Door::hear(Stranger& stranger, const Check& check, const Enter& enter) const {
  Channel& channel = stranger.channel;
  std::string refusal;
  try {
    const bool is_open = channel.receive();
    const std::optional<Message> message = channel.next();
    if (!message) return !is_open || clock_s() - stranger.since > kIntroduction;
    const auto* const hello = std::get_if<Hello>(&*message);
    if (!hello) return true;
    if (hello->proof != proof_of(key_, stranger.challenge, *hello)) refusal = "the secret is another one";
    else {
      check(*hello);
      channel.send(Welcome{proof_of_welcome(key_, stranger.challenge, *hello)});
      enter(std::move(channel), *hello);
      return true;
    }
  } catch (const Error& e) {
    refusal = e.what();
  }
  try {
    channel.send(Refused{refusal});
  } catch (const Error&) {
  }
  return true;
}

}  // namespace tessera::dist
