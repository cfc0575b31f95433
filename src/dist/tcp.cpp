#include "dist/tcp.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera::dist {
namespace {

constexpr size_t kPieces = 64;  // that a call of the system takes

// So many bytes have moved.
template <class Flow>
void move_on(Flow& flow, size_t bytes) {
  for (; flow.at < flow.pieces.size(); ++flow.at) {
    iovec& piece = flow.pieces[flow.at];
    const size_t n = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + n;
    piece.iov_len -= n;
    bytes -= n;
    if (piece.iov_len > 0) return;
  }
}

}  // namespace

Tcp::Tcp(std::shared_ptr<Control> control, std::shared_ptr<Mesh> mesh, uint64_t group, std::vector<int> members,
         int rank)
    : Exchanges(std::move(control), group, std::move(members), rank),
      mesh_(std::move(mesh)),
      group_(group),
      streams_(members_.size()),
      to_(members_.size()),
      from_(members_.size()) {}

void Tcp::connect() {
  for (int r = 0; r < rank_; ++r)
    streams_[static_cast<size_t>(r)] = mesh_->open(rank_of(r), group_, Purpose::Collectives);
  for (int r = rank_ + 1; r < size(); ++r)
    streams_[static_cast<size_t>(r)] = mesh_->take(rank_of(r), group_, Purpose::Collectives);
}

// The same for all on other hosts.
HostAddress Tcp::address() const {
  HostAddress out = kThisHost;
  for (int r = 0; r < size(); ++r)
    if (const Socket& stream = streams_[static_cast<size_t>(r)]; stream && !control_->is_local(rank_of(r)))
      out = stream.local();
  return out;
}

bool Tcp::write_some(const Socket& to, Flow& flow, int peer) {
  if (flow.ended()) return false;
  msghdr message{};
  message.msg_iov = flow.pieces.data() + flow.at;
  message.msg_iovlen = std::min(kPieces, flow.pieces.size() - flow.at);
  const ssize_t n = sendmsg(to.fd(), &message, MSG_NOSIGNAL);
  if (n < 0 && errno != EAGAIN && errno != EINTR) lost(peer, std::strerror(errno));
  if (n <= 0) return false;
  move_on(flow, static_cast<size_t>(n));
  return true;
}

bool Tcp::read_some(const Socket& from, Flow& flow, int peer) {
  if (flow.ended()) return false;
  const ssize_t n =
      readv(from.fd(), flow.pieces.data() + flow.at, static_cast<int>(std::min(kPieces, flow.pieces.size() - flow.at)));
  if (n == 0) lost(peer, "it was closed");
  if (n < 0 && errno != EAGAIN && errno != EINTR) lost(peer, std::strerror(errno));
  if (n <= 0) return false;
  move_on(flow, static_cast<size_t>(n));
  return true;
}

bool Tcp::advance(Flows& flows, int peer) {
  const auto p = static_cast<size_t>(peer);
  const bool wrote = write_some(streams_[p], flows.out[p], peer);
  return read_some(streams_[p], flows.in[p], peer) || wrote;
}

void Tcp::sleep(const Flows& flows, int other, int64_t began) {
  std::vector<pollfd> all;
  for (size_t p = 0; p < streams_.size(); ++p) {
    const short events = static_cast<short>((flows.out[p].ended() ? 0 : POLLOUT) | (flows.in[p].ended() ? 0 : POLLIN));
    if (events) all.push_back({streams_[p].fd(), events, 0});
  }
  const Control::Waiting waiting(*control_, self(), rank_of(other), began);
  if (poll(all.data(), all.size(), 100) == 0) control_->look(began, self(), rank_of(other));
}

// All of a flow, in one direction.
void Tcp::transfer(const Socket& socket, Flow& flow, int peer, bool is_out) {
  const int other = rank_of(peer);
  while (!flow.ended()) {
    if (is_out ? write_some(socket, flow, peer) : read_some(socket, flow, peer)) continue;
    const int64_t began = now_ns();
    const Control::Waiting waiting(*control_, self(), other, began);
    pollfd p{socket.fd(), static_cast<short>(is_out ? POLLOUT : POLLIN), 0};
    while (poll(&p, 1, 100) == 0) control_->look(began, self(), other);
  }
}

void Tcp::send(const char* data, int64_t bytes, int to) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Send, bytes, to));
  Socket& stream = to_[static_cast<size_t>(to)];
  if (!stream) stream = mesh_->open(rank_of(to), group_, Purpose::Messages);
  Flow flow;
  flow.add(&bytes, sizeof bytes);
  flow.add(data, bytes);
  transfer(stream, flow, to, true);
}

void Tcp::recv(char* data, int64_t bytes, int from) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Recv, bytes, from));
  Socket& stream = from_[static_cast<size_t>(from)];
  if (!stream) stream = mesh_->take(rank_of(from), group_, Purpose::Messages);
  int64_t sent = 0;
  Flow head, rest;
  head.add(&sent, sizeof sent);
  transfer(stream, head, from, false);
  if (sent != bytes)
    throw Error(fmt::format("recv: {} bytes were expected of rank {}, which sent {}", bytes, from, sent));
  rest.add(data, bytes);
  transfer(stream, rest, from, false);
}

}  // namespace tessera::dist
