// A small HTTP server of a test, which misbehaves as it is told.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

struct HttpAnswer {
  int status = 200;
  std::string body = {};
  size_t sent = std::string::npos;     ///< of the body's bytes: fewer than were announced
  bool silent = false;                 ///< nothing comes, and the connection stays open
  std::chrono::milliseconds pause{0};  ///< after each byte
  std::string more_headers = {};
};

class HttpServer {
 public:
  /// `answer` is called with the path and how often that was asked for before, from any thread.
  using Handler = std::function<HttpAnswer(const std::string& path, int before)>;
  explicit HttpServer(Handler answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 64) != 0 || ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no socket for a test");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept(); });
  }
  ~HttpServer() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      for (int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    changed_.notify_all();
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    for (std::thread& thread : threads_) thread.join();
    for (int fd : open_) ::close(fd);
  }
  std::string operator/(const std::string& path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + "/" + path;
  }
  int asked(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return asked_[path];
  }

 private:
  void accept() {
    for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      const std::lock_guard lock(mutex_);
      if (stop_) {
        ::close(fd);
        return;
      }
      open_.push_back(fd);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    std::string request;
    char part[4096];
    while (request.find("\r\n\r\n") == request.npos) {
      const ssize_t n = ::recv(fd, part, sizeof part, 0);
      if (n <= 0) return;
      request.append(part, static_cast<size_t>(n));
    }
    const size_t begin = request.find(' ') + 1;
    const std::string path = request.substr(begin + 1, request.find(' ', begin) - begin - 1);
    int before = 0;
    {
      const std::lock_guard lock(mutex_);
      before = asked_[path]++;
    }
    const HttpAnswer answer = answer_(path, before);
    if (answer.silent) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_; });
      return;
    }
    send(fd,
         "HTTP/1.1 " + std::to_string(answer.status) + " X\r\nConnection: close\r\nContent-Length: " +
             std::to_string(answer.body.size()) + "\r\n" + answer.more_headers + "\r\n",
         {});
    send(fd, answer.body.substr(0, answer.sent), answer.pause);
    ::shutdown(fd, SHUT_RDWR);
  }

  static void send(int fd, std::string_view bytes, std::chrono::milliseconds pause) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), pause.count() ? 1 : bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
      std::this_thread::sleep_for(pause);
    }
  }

  Handler answer_;
  int listener_, port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::map<std::string, int> asked_;
  std::thread acceptor_;
};

}  // namespace tessera
