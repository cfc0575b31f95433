#include "dist/messages.h"

#include <fmt/format.h>

namespace tessera::dist {

Messages::Messages(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank)
    : Exchanges(std::move(control), group, std::move(members), rank) {
  for (int r = 0; r < size(); ++r) links_.push_back(std::make_unique<Link>(*this));
}

bool Messages::Message::ends() {
  if (!message_ || !engine_.is_done(message_)) return false;
  message_ = nullptr;
  return true;
}

void Messages::Message::drop() {
  if (message_) engine_.drop(std::exchange(message_, nullptr));
}

// ---- exchanges: what ranks call is a message of its own, so that the rest is received only where they call alike ----

void Messages::begin(const Flows& flows, int peer) {
  const Flow &out = flows.out[static_cast<size_t>(peer)], &in = flows.in[static_cast<size_t>(peer)];
  Link& link = *links_[static_cast<size_t>(peer)];
  link.has_begun = true;
  if (is_first()) {
    link.says.begin(true, out.pieces.data(), 1, peer, Lane::Collectives);
    link.hears.begin(false, in.pieces.data(), 1, peer, Lane::Collectives);
  }
  begin_parts(true, out, peer);
  if (!is_first()) begin_parts(false, in, peer);
}

// A part is a message: where it lies in one piece, nobody need pack it.
void Messages::begin_parts(bool is_out, const Flow& flow, int peer) {
  Link& link = *links_[static_cast<size_t>(peer)];
  const size_t begins[] = {is_first(), flow.second, flow.pieces.size()};
  for (size_t part = 0; part < 2; ++part)
    if (const size_t at = begins[part], n = begins[part + 1] - at; n > 0)
      (is_out ? link.out : link.in)[part].begin(is_out, flow.pieces.data() + at, n, peer, Lane::Collectives);
}

bool Messages::advance(Flows& flows, int peer) {
  Flow &out = flows.out[static_cast<size_t>(peer)], &in = flows.in[static_cast<size_t>(peer)];
  Link& link = *links_[static_cast<size_t>(peer)];
  if (!link.has_begun) {
    begin(flows, peer);
    return true;
  }
  bool goes_on = false;
  const auto ended = [&](Message& message, Flow& flow, size_t pieces) {
    if (!message.ends()) return false;
    flow.at += pieces;
    return goes_on = true;
  };
  ended(link.says, out, 1);
  if (ended(link.hears, in, 1) && calls_alike(peer)) begin_parts(false, in, peer);
  for (const size_t part : {0, 1}) {
    const auto pieces = [&](const Flow& f) { return part ? f.pieces.size() - f.second : f.second - is_first(); };
    ended(link.out[part], out, pieces(out));
    ended(link.in[part], in, pieces(in));
  }
  return goes_on;
}

void Messages::exchange(Flows& flows) {
  const auto end = [&] {
    for (const auto& link : links_) {
      for (Message* m : link->all()) m->drop();
      link->has_begun = false;
    }
  };
  try {
    Exchanges::exchange(flows);
  } catch (...) {
    end();
    throw;
  }
  end();
}

void Messages::sleep(const Flows&, int other, int64_t began) {
  const Control::Waiting waiting(*control_, self(), rank_of(other), began);
  std::vector<void*> open;
  for (const auto& link : links_)
    for (const Message* m : link->all())
      if (m->get()) open.push_back(m->get());
  if (const int late = rest(open, other, began); late >= 0) control_->look(began, self(), rank_of(late));
}

// ---- messages between two ranks: how many bytes, and they ----

void Messages::wait(Message& message, int peer) {
  const int64_t began = now_ns();
  std::optional<Control::Waiting> waiting;
  while (!message.ends()) {
    if (!waiting) waiting.emplace(*control_, self(), rank_of(peer), began);
    void* const open = message.get();
    if (rest({&open, 1}, peer, began) >= 0) control_->look(began, self(), rank_of(peer));
  }
}

void Messages::send(const char* data, int64_t bytes, int to) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Send, bytes, to));
  const iovec head{&bytes, sizeof bytes}, tail{const_cast<char*>(data), static_cast<size_t>(bytes)};
  Message says(*this), out(*this);
  says.begin(true, &head, 1, to, Lane::Between);
  if (bytes > 0) out.begin(true, &tail, 1, to, Lane::Between);
  wait(says, to);
  if (bytes > 0) wait(out, to);
}

void Messages::recv(char* data, int64_t bytes, int from) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Recv, bytes, from));
  int64_t sent = 0;
  const iovec head{&sent, sizeof sent}, tail{data, static_cast<size_t>(bytes)};
  Message hears(*this), in(*this);
  hears.begin(false, &head, 1, from, Lane::Between);
  wait(hears, from);
  if (sent != bytes)
    throw Error(fmt::format("recv: {} bytes were expected of rank {}, which sent {}", bytes, from, sent));
  if (bytes == 0) return;
  in.begin(false, &tail, 1, from, Lane::Between);
  wait(in, from);
}

}  // namespace tessera::dist
