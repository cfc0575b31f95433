// Connections between hosts.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/error.h"

#include "dist/wire.h"

namespace tessera::dist {

constexpr HostAddress kThisHost{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

/// A socket of TCP, never blocking, closed with the object.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  /// Takes connections to any address of this host; port 0: a free one. Throws Error: "port 80 is in use".
  static Socket listen(int port);
  int port() const;
  /// The next that came, or none.
  Socket accept() const;
  /// Throws Error, within so many seconds.
  static Socket connect(const HostAddress& address, int port, double seconds);
  HostAddress peer() const;   ///< whose it is
  HostAddress local() const;  ///< ours, as the other one sees it

 private:
  int fd_;
};

/// Waits until one of them can be read; returns which of them can. `seconds`: at most.
std::vector<bool> wait_readable(const std::vector<int>& fds, double seconds);

/// What the name means. Throws Error where it means nothing.
std::vector<HostAddress> resolve(const std::string& host);
std::string to_string(const HostAddress& address);
bool is_loopback(const HostAddress& address);

/// Wakes whoever waits for its descriptor.
class Bell {
 public:
  Bell();
  ~Bell();
  Bell(const Bell&) = delete;
  int fd() const { return fd_; }
  void ring() const;
  void hush() const;

 private:
  int fd_;
};

/// Signals are for other threads.
std::thread thread_without_signals(std::function<void()> work);

/// The other side has closed the connection.
struct ConnectionClosed : Error {
  using Error::Error;
};

/// Messages over a socket.
class Channel {
 public:
  explicit Channel(Socket socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.fd(); }
  const Socket& socket() const { return socket_; }
  /// Throws Error where the other does not take it, and ConnectionClosed.
  void send(const Message& message) const;
  /// Takes what has come; false: the other has closed.
  bool receive();
  /// The next that has come. Throws Error at bytes that are no message.
  std::optional<Message> next() { return stream_.next(); }
  /// The next one and no byte behind it, which nothing was taken of before. Throws Error after so many seconds, with
  /// whom nothing came from, and ConnectionClosed.
  Message wait(double seconds, const std::string& whom) const;
  /// Becomes a stream of bytes.
  Socket release() { return std::move(socket_); }

 private:
  Socket socket_;
  MessageStream stream_;
};

/// Connects and proves the secret, as the other does. Throws Error: why it cannot be.
Channel knock(const HostAddress& address, int port, const Key& key, Hello hello, double seconds);

/// Accepts connections of those who know the secret, while others get a reason and are forgotten.
class Door {
 public:
  Door(Socket listener, Key key) : listener_(std::move(listener)), key_(key) {}
  /// What to wait for.
  void add_to(std::vector<int>& fds) const;
  int port() const { return listener_.port(); }
  using Check = std::function<void(const Hello&)>;
  using Enter = std::function<void(Channel&&, const Hello&)>;
  /// Whose proof has come is checked, which may throw Error that the other reads, and enters.
  void step(const Check& check, const Enter& enter);

 private:
  struct Stranger {
    Channel channel;
    Challenge challenge;
    double since;
  };
  /// Whether it is settled, be it well or not.
  bool hear(Stranger& stranger, const Check& check, const Enter& enter) const;
  Socket listener_;
  Key key_;
  std::vector<Stranger> strangers_;
};

}  // namespace tessera::dist
