#include "profiler/trace_events.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "tessera/error.h"

namespace tessera::profiler {
namespace {

constexpr size_t kDeepestTrace = 32;
constexpr int64_t kLongestTime = int64_t{1} << 61;  // nanoseconds: two of them can be added

/// What the parser calls: builds a value of interest, and hands it over when it is complete.
class TraceWalker {
 public:
  TraceWalker(const std::string& file, const TraceParts& parts) : file_(file), parts_(parts) {}

  bool null() { return value(nullptr); }
  bool boolean(bool v) { return value(v); }
  bool number_integer(int64_t v) { return is_time() ? time(std::to_string(v)) : value(v); }
  bool number_unsigned(uint64_t v) { return is_time() ? time(std::to_string(v)) : value(v); }
  bool number_float(double v, const std::string& text) { return is_time() ? time(text) : value(v); }
  bool string(std::string& v) { return value(std::move(v)); }
  bool binary(TraceJson::binary_t&) { return false; }
  bool start_object(size_t) { return open(TraceJson::object()); }
  bool start_array(size_t) { return open(TraceJson::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& v);
  bool parse_error(size_t at, const std::string&, const TraceJson::exception&) {
    error_at_ = at;
    return false;
  }

  size_t error_at() const { return error_at_; }
  bool has_events() const { return has_events_; }
  bool is_object() const { return is_object_; }

 private:
  bool is_time() const {
    return in_events_ && stack_.size() == 1 && stack_[0]->is_object() && (key_ == "ts" || key_ == "dur");
  }
  bool time(const std::string& text) {
    int64_t nanoseconds = 0;
    return parse_microseconds(text, nanoseconds) ? value(nanoseconds) : value(nullptr);
  }
  bool is_kept() const { return !stack_.empty() || in_events_ || wanted_; }
  TraceJson* add(TraceJson v);
  bool value(TraceJson v);
  bool open(TraceJson v);
  bool close();
  void complete();

  const std::string& file_;
  const TraceParts& parts_;
  size_t depth_ = 0;               ///< of open lists and objects
  std::string member_, key_;       ///< of the file; of the value being built
  std::vector<TraceJson*> stack_;  ///< open lists and objects of the value being built
  TraceJson root_;                 ///< that value
  bool wanted_ = false;            ///< whether the present member is built
  bool in_events_ = false;         ///< whether the list of events is open
  bool has_events_ = false, is_object_ = false;
  size_t error_at_ = 0;
};

bool TraceWalker::key(std::string& v) {
  if (depth_ > 1) {
    key_ = std::move(v);
    return true;
  }
  member_ = std::move(v);
  wanted_ = parts_.wanted(member_);
  return true;
}

TraceJson* TraceWalker::add(TraceJson v) {
  if (stack_.empty()) {
    root_ = std::move(v);
    return &root_;
  }
  TraceJson& parent = *stack_.back();
  if (parent.is_array()) {
    parent.push_back(std::move(v));
    return &parent.back();
  }
  TraceJson& place = parent[key_];
  place = std::move(v);
  return &place;
}

bool TraceWalker::value(TraceJson v) {
  if (depth_ == 0 || !is_kept()) return true;
  add(std::move(v));
  if (stack_.empty()) complete();
  return true;
}

bool TraceWalker::open(TraceJson v) {
  if (++depth_ > kDeepestTrace) throw FileError(file_ + ": is no trace: its values are nested too deeply");
  if (depth_ == 1) {
    is_object_ = v.is_object();
    return is_object_;
  }
  if (depth_ == 2 && member_ == "traceEvents" && v.is_array()) {
    in_events_ = has_events_ = true;
    return true;
  }
  if (is_kept()) stack_.push_back(add(std::move(v)));
  return true;
}

bool TraceWalker::close() {
  --depth_;
  if (!stack_.empty()) {
    stack_.pop_back();
    if (stack_.empty()) complete();
  } else if (depth_ == 1) {
    in_events_ = false;
  }
  return true;
}

void TraceWalker::complete() {
  if (in_events_) parts_.event(root_);
  else parts_.member(member_, root_);
  root_ = nullptr;
}

}  // namespace

bool parse_microseconds(const std::string& text, int64_t& nanoseconds) {
  size_t at = text.starts_with('-') ? 1 : 0;
  int64_t whole = 0, part = 0;
  const auto digit = [&] { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  for (; digit(); ++at) {
    whole = whole * 10 + (text[at] - '0');
    if (whole > kLongestTime / 1000) return false;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    for (int64_t unit = 100; digit(); ++at, unit /= 10) part += unit * (text[at] - '0');
  }
  nanoseconds = whole * 1000 + part;
  if (text.starts_with('-')) nanoseconds = -nanoseconds;
  if (at == text.size()) return true;
  const double value = std::strtod(text.c_str(), nullptr) * 1000;  // of an exponent: as exact as doubles are
  if (!(std::abs(value) < static_cast<double>(kLongestTime))) return false;
  nanoseconds = std::llround(value);
  return true;
}

void walk_trace(std::string_view json, const std::string& file, const TraceParts& parts) {
  const size_t begin = json.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) throw FileError(file + ": is no trace: it is empty");
  TraceWalker walker(file, parts);
  if (!TraceJson::sax_parse(json.begin(), json.end(), &walker)) {
    if (json[begin] != '{' || !walker.is_object()) throw FileError(file + ": is no trace: no JSON object");
    if (walker.error_at() >= json.size())
      throw FileError(fmt::format("{}: the trace is cut short at byte {}", file, json.size()));
    throw FileError(fmt::format("{}: is no trace: what is at byte {} is not JSON", file, walker.error_at()));
  }
  if (!walker.is_object()) throw FileError(file + ": is no trace: no JSON object");
  if (!walker.has_events()) throw FileError(file + ": is no trace: it has no list \"traceEvents\"");
}

}  // namespace tessera::profiler
