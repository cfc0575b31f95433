#include "profiler/advice_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "profiler/kernel_name.h"
#include "profiler/waits.h"

namespace tessera::profiler {
namespace {

// ---- models: what things take, in nanoseconds, or as shares

constexpr int64_t kKernelGap = 500;        // between kernels of a captured graph: nothing makes it smaller
constexpr int64_t kLaunchTime = 4'000;     // from the begin of a call that launches until a device can begin
constexpr int64_t kLaunchFloor = 2'000;    // of a small kernel: to fill a device with blocks, and to drain it
constexpr int64_t kSmallKernel = 10'000;   // so short that this floor is a good part of it
constexpr int64_t kSmallOp = 5'000;        // the same on the host,
constexpr int64_t kOpFloor = 200;          // where a call's dispatch and allocation take about this,
constexpr int64_t kRecording = 500;        // and up to so much between calls is the recorder's own
constexpr int64_t kRowGap = 50'000;        // kernels further apart are not a row: something else is between them
constexpr size_t kShortestRow = 5;         // of calls
constexpr int64_t kAfterwards = 20'000;    // until a host that waited has its next kernel on a device
constexpr int64_t kDispatchGap = 50'000;   // gaps up to this are the host's, whether what it did has a name or not
constexpr double kLow = 0.3, kGood = 0.6;  // shares of a roof: what points at a cause, and what good products reach
constexpr double kLeastProduct = 4e-6;     // seconds that a product takes however small it is
constexpr double kCopyShare = 0.05;        // of a step: some copies are always needed
constexpr double kLittle = 0.05;           // of what is won: more than this is worth a word

double whole(int64_t nanoseconds) { return static_cast<double>(nanoseconds); }

/// Takes a place's share of what is to be won, and says which of them has most.
class Places {
 public:
  struct Place {
    std::string op, path, source;
    auto operator<=>(const Place&) const = default;
  };
  void add(const Trace& trace, const Span* span, double nanoseconds) {
    Place place;
    if (span) {
      place.op = op_of(trace, *span);
      const Span* owner = owner_of(trace, *span);
      const Call* call = trace.call_of(*span);
      if (!call && owner) call = trace.call_of(*owner);
      if (call) std::tie(place.path, place.source) = std::pair(call->path, call->source);
    }
    sums_[place] += nanoseconds;
  }
  void name(Advice& advice) const {
    const auto most =
        std::max_element(sums_.begin(), sums_.end(), [](auto& a, auto& b) { return a.second < b.second; });
    if (most != sums_.end())
      std::tie(advice.op, advice.path, advice.source) = std::tie(most->first.op, most->first.path, most->first.source);
  }

 private:
  std::map<Place, double> sums_;
};

bool is_word_in(std::string_view text, std::string_view word) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !letter(text[at - 1])) && (end == text.size() || !letter(text[end]))) return true;
  }
  return false;
}

bool names_a_loader(std::string_view name) {
  return contains_word(name, "loader") || contains_word(name, "next batch") || contains_word(name, "next_batch") ||
         is_word_in(name, "data") || is_word_in(name, "Data");
}

/// Of the idle times, in order, that which has `at` or comes next.
Intervals::iterator gap_at(Intervals& idle, int64_t at) {
  return std::partition_point(idle.begin(), idle.end(), [&](const Interval& gap) { return gap.end <= at; });
}

/// The first of the device's spans that begins there or later.
const Span* started_at(const std::vector<const Span*>& spans, int64_t at) {
  const auto next = std::partition_point(spans.begin(), spans.end(), [&](const Span* s) { return s->begin < at; });
  return next == spans.end() ? nullptr : *next;
}

std::vector<const Span*> device_spans(const AdviceInput& in) {
  std::vector<const Span*> out;
  for (const Span& span : in.trace.spans)
    if (is_on_device(span.kind) && span.device == in.device) out.push_back(&span);
  return out;
}

bool is_of_host(const AdviceInput& in, const Span& span) {
  return !is_on_device(span.kind) && rank_of(in.trace, span) == in.rank;
}

}  // namespace

// ---- the loader

// A loader on a thread of its own takes no time of the training thread. So the host reaches its next launch earlier by
// what loading took, and a gap in which the training thread was in the loader shrinks by that, down to nothing. On the
// host alone, steps shrink by all of it: this supposes that a core is free to load.
Advices advise_on_loader(AdviceInput& in) {
  std::vector<Interval> pieces;
  std::string name;
  int64_t longest = 0;
  for (const Span& span : in.trace.spans) {
    if ((span.kind != Kind::Range && span.kind != Kind::Op) || span.thread != in.thread) continue;
    if (!names_a_loader(in.trace.name_of(span))) continue;
    pieces.push_back(interval_of(span));
    if (interval_of(span).length() <= longest) continue;
    longest = interval_of(span).length();
    name = in.trace.name_of(span);
  }
  const Intervals loads = union_of(std::move(pieces));
  int64_t won = in.on_host() ? length_of(common(in.windows, loads)) : 0;
  for (Interval& gap : in.idle) {
    int64_t loading = 0;
    auto load = std::partition_point(loads.begin(), loads.end(), [&](const Interval& l) { return l.end <= gap.begin; });
    for (; load != loads.end() && load->begin < gap.end; ++load) loading += load->length();
    const int64_t shrinks = std::min(loading, gap.length());
    won += shrinks;
    gap.begin += shrinks;
  }
  std::erase_if(in.idle, [](const Interval& gap) { return gap.length() == 0; });
  Advice out = in.advice("data loader", whole(won));
  out.op = name;
  out.what = in.on_host() ? fmt::format(
                                "{} of a step the training thread loads data, in \"{}\": load on another thread, "
                                "some batches ahead.",
                                time_text(out.seconds), name)
                          : fmt::format(
                                "{} of a step the device has nothing to do because the training thread is in "
                                "\"{}\": load on another thread, some batches ahead.",
                                time_text(out.seconds), name);
  return {out};
}

// ---- synchronisation

namespace {

bool makes_host_wait(std::string_view name) {
  return contains_word(name, "synchronize") || name == "cudaMemcpy" || name == "hipMemcpy" || name == "cudaMemcpy2D" ||
         name.starts_with("cuMemcpyDtoH_");
}
bool reads_from_device(std::string_view op) {
  op = bare_op(op);
  return op == "item" || op == "_local_scalar_dense" || op == "is_nonzero";
}

}  // namespace

// When copies to pageable memory of the host end, by the calls that made them: these return only then.
static std::unordered_map<uint32_t, int64_t> ends_of_reads(const Trace& trace) {
  std::unordered_map<uint32_t, int64_t> ends;
  for (const Span& span : trace.spans) {
    if (span.kind != Kind::Copy || !span.correlation) continue;
    const std::string_view name = trace.name_of(span);
    if (name.find("DtoH") != name.npos && name.find("Pageable") != name.npos) ends[span.correlation] = span.end;
  }
  return ends;
}

// A host that waits for the device has nothing queued when the device is done: the device idles until the host has come
// back and launched again. Without the wait the next kernels would have been queued by then, so the whole gap goes.
Advices advise_on_synchronisation(AdviceInput& in) {
  struct Group {
    int64_t won = 0, calls = 0;
  };
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Group> groups;
  const auto reads = ends_of_reads(in.trace);
  for (const Span& span : in.trace.spans) {
    const auto read = span.kind == Kind::Runtime ? reads.find(span.correlation) : reads.end();
    const bool waits = span.kind == Kind::Runtime ? read != reads.end() || makes_host_wait(in.trace.name_of(span))
                                                  : span.kind == Kind::Op && reads_from_device(op_of(in.trace, span));
    if (!waits || !is_of_host(in, span)) continue;
    const auto gap = gap_at(in.idle, read != reads.end() ? read->second : span.begin);
    if (gap == in.idle.end() || gap->begin < span.begin || gap->begin > span.end + kAfterwards) continue;
    const Span* owner = span.kind == Kind::Op ? &span : owner_of(in.trace, span);
    const Call* call = owner ? in.trace.call_of(*owner) : nullptr;
    Group& group = groups[{std::string(in.trace.name_of(span)), owner ? std::string(op_of(in.trace, *owner)) : "",
                           call ? call->path : "", call ? call->source : ""}];
    group.won += gap->length();
    ++group.calls;
    in.idle.erase(gap);
  }
  Advices out;
  for (const auto& [place, group] : groups) {
    Advice one = in.advice("synchronisation", whole(group.won));
    std::string name;
    std::tie(name, one.op, one.path, one.source) = place;
    one.what = fmt::format(
        "{}{} makes the host wait, and then the device: it idles {} of a step until it has work again "
        "({}). Read results later, or only every so many steps.",
        name, one.op.empty() || one.op == name ? "" : " in " + one.op, time_text(one.seconds),
        count_text(group.calls, "time"));
    out.push_back(std::move(one));
  }
  return out;
}

// ---- the host

// Seconds of the device's recorded steps, on average.
static double recorded_step(const AdviceInput& in) {
  double sum = 0, count = 0;
  for (const Span& span : in.trace.spans) {
    if (span.kind != Kind::Step || rank_of(in.trace, span) != in.rank) continue;
    sum += seconds_in(span.end - span.begin);
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// Of a device's idle time in recorded steps, the share that other steps have, too: recording lengthens what the host
// does.
static double plain_share(const AdviceInput& in) {
  if (in.trace.plain_step == 0) return 1;
  const double busy = in.busy_share * in.step_seconds, idle = recorded_step(in) - busy;
  return idle > 0 ? std::clamp((seconds_in(in.trace.plain_step) - busy) / idle, 0.0, 1.0) : 1;
}

// What other steps take of a recorded one: recording also spreads a graph's kernels.
static double plain_length(const AdviceInput& in) {
  const double recorded = recorded_step(in);
  if (in.trace.plain_step == 0 || recorded == 0) return 1;
  return std::min(seconds_in(in.trace.plain_step) / recorded, 1.0);
}

// Where a kernel was launched only after the device had run dry, the device waited for the host. A graph's kernels are
// about kKernelGap apart, so what is more than that is won, less what only the recording took. What the host does in
// between must be operators and launches: what else a program does there, no graph and no larger batch would make
// shorter.
Advices advise_on_host(AdviceInput& in) {
  if (in.on_host()) return {};
  std::vector<Interval> work;
  for (const Span& span : in.trace.spans)
    if (is_of_host(in, span) && (span.kind == Kind::Op || span.kind == Kind::Runtime))
      work.push_back(interval_of(span));
  const Intervals busy = union_of(std::move(work));
  const std::vector<const Span*> spans = device_spans(in);
  Places places;
  int64_t won = 0, gaps = 0;
  std::erase_if(in.idle, [&](const Interval& gap) {
    if (gap.length() <= kKernelGap) return false;
    const Span* next = started_at(spans, gap.end);
    const bool known = next && (in.launched.call(*next) || owner_of(in.trace, *next));
    if (!known || in.launched(*next) + kLaunchTime < gap.begin) return false;  // it was queued in time
    const int64_t named = length_of(clipped_to(busy, gap));
    if (gap.length() > kDispatchGap && named * 2 < gap.length()) return false;
    won += gap.length() - kKernelGap;
    ++gaps;
    places.add(in.trace, next, whole(gap.length()));
    return true;
  });
  won = std::llround(static_cast<double>(won) * plain_share(in));
  Advice out = in.advice("host-bound", whole(won));
  places.name(out);
  out.what = fmt::format(
      "the device waits for the host in {} of a step, {} on average: kernels start as soon as they "
      "are launched. Replay the step as a captured graph, or give each step larger batches.{}",
      count_text(gaps / static_cast<int64_t>(in.steps.size()), "gap"),
      time_text(gaps ? seconds_in(won) / static_cast<double>(gaps) : 0),
      in.trace.plain_step ? "" : " Recording is part of it: no step was timed without.");
  return {out};
}

// ---- small kernels

namespace {

/// A kernel, or on the host an operator that calls no other one.
struct SmallCall {
  const Span* span;
  std::pair<int32_t, int32_t> id;  // of the call that it is for
  int64_t time = 0;                // of its kernels in the row
};

struct RowOfCalls {
  std::vector<SmallCall> calls;
  int64_t gaps = 0;  // between different calls

  /// What is won if one call takes the place of all: gaps, and a floor for all but one, which is no more than it took.
  int64_t gain(int64_t floor) const {
    int64_t floors = 0, most = 0;
    for (const SmallCall& call : calls) {
      floors += std::min(floor, call.time);
      most = std::max(most, std::min(floor, call.time));
    }
    return gaps + floors - most;
  }
};

bool may_be_fused(std::string_view op) { return !op.empty() && !is_product(op) && !is_collective(op); }

std::vector<SmallCall> small_candidates(const AdviceInput& in) {
  std::vector<SmallCall> out;
  for (size_t i = 0; i < in.trace.spans.size(); ++i) {
    const Span& span = in.trace.spans[i];
    if (!in.is_in_steps(span.begin)) continue;
    if (!in.on_host()) {
      if (span.kind == Kind::Kernel && span.device == in.device) out.push_back({&span, {span.owner, span.call}, 0});
    } else if (span.kind == Kind::Op && span.thread == in.thread) {
      if (!out.empty() && out.back().span->end >= span.end) out.pop_back();  // it calls this one
      out.push_back({&span, {static_cast<int32_t>(i), -1}, 0});
    }
  }
  if (!in.on_host())  // streams after each other
    std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.span->thread < b.span->thread; });
  return out;
}

std::vector<RowOfCalls> rows_of_small(const AdviceInput& in) {
  const int64_t small = in.on_host() ? kSmallOp : kSmallKernel;
  std::vector<RowOfCalls> rows(1);
  for (const SmallCall& call : small_candidates(in)) {
    const bool fits = interval_of(*call.span).length() < small && may_be_fused(op_of(in.trace, *call.span));
    RowOfCalls& row = rows.back();
    const Span* last = row.calls.empty() ? nullptr : row.calls.back().span;
    const int64_t gap = last ? call.span->begin - last->end : 0;
    const bool joins = fits && (!last || (last->thread == call.span->thread && gap <= kRowGap));
    if (!joins && last) rows.emplace_back();
    if (!fits) continue;
    RowOfCalls& to = rows.back();
    const bool same = !to.calls.empty() && to.calls.back().id == call.id;  // nobody can fuse that from outside
    if (!same && !to.calls.empty()) to.gaps += std::max<int64_t>(gap - (in.on_host() ? kRecording : 0), 0);
    if (!same) to.calls.push_back(call);
    to.calls.back().span = call.span;
    to.calls.back().time += interval_of(*call.span).length();
  }
  std::erase_if(rows, [](const RowOfCalls& row) { return row.calls.size() < kShortestRow; });
  return rows;
}

}  // namespace

// One kernel in the place of n has no gaps within, and fills and drains the device once: n - 1 gaps and floors are won.
// That it also reads and writes less is not counted. On the host the same holds of calls and their dispatch, but short
// gaps there are the recorder's.
Advices advise_on_small_kernels(const AdviceInput& in) {
  const std::vector<RowOfCalls> rows = rows_of_small(in);
  if (rows.empty()) return {};
  const auto gain = [&](const RowOfCalls& row) { return row.gain(in.on_host() ? kOpFloor : kLaunchFloor); };
  int64_t won = 0;
  size_t shortest = SIZE_MAX, longest = 0;
  for (const RowOfCalls& row : rows) {
    won += gain(row);
    shortest = std::min(shortest, row.calls.size());
    longest = std::max(longest, row.calls.size());
  }
  const auto& best = *std::max_element(rows.begin(), rows.end(), [&](auto& a, auto& b) { return gain(a) < gain(b); });
  std::vector<std::string> ops;
  for (size_t i = 0; i < std::min<size_t>(best.calls.size(), 4); ++i)
    ops.emplace_back(op_of(in.trace, *best.calls[i].span));
  if (best.calls.size() > ops.size()) ops.emplace_back("..");
  Advice out = in.advice("small kernels", whole(won) * (in.on_host() ? 1 : plain_length(in)));
  Places places;
  places.add(in.trace, best.calls[0].span, 1);
  places.name(out);
  const std::string lengths =
      shortest == longest ? fmt::format("{}", longest) : fmt::format("{} to {}", shortest, longest);
  out.what = fmt::format("{} of {} {} below {} in a row, such as {}: make them one operator, or one fused kernel.",
                         count_text(static_cast<int64_t>(rows.size()), "time"), lengths,
                         in.on_host() ? "operators" : "kernels",
                         time_text(seconds_in(in.on_host() ? kSmallOp : kSmallKernel)), fmt::join(ops, ", "));
  return {out};
}

// ---- matrix cores

namespace {

/// Which dim of an input must fill whole vectors of matrix cores; -1: none, or that of another input.
int checked_dim(std::string_view op, size_t input, size_t dims) {
  const bool first = input == 0;
  if (op.find("conv") != op.npos) {  // channels
    if (dims != 4 || input > 1) return -1;
    return first || op.find("grad") != op.npos ? 1 : 0;
  }
  if (dims < 2) return -1;
  if (op == "linear" && input > 0) return input == 1 ? 0 : -1;  // the weight's rows are the outputs' features
  return static_cast<int>(dims) - 1;
}

/// "dim 1 of input 0 is 1023"; empty: none is to blame.
std::string dims_to_blame(const Call& call, int64_t multiple) {
  std::vector<std::string> found;
  for (size_t i = 0; i < call.dims.size(); ++i) {
    const int dim = checked_dim(bare_op(call.op), i, call.dims[i].size());
    const int64_t size = dim < 0 ? 0 : call.dims[i][static_cast<size_t>(dim)];
    if (size > 1 && size % multiple != 0) found.push_back(fmt::format("dim {} of input {} is {}", dim, i, size));
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

std::string inputs_text(const Call& call) {
  std::vector<std::string> all;
  for (const auto& dims : call.dims)
    if (!dims.empty()) all.push_back(fmt::format("[{}]", fmt::join(dims, ", ")));
  if (all.size() > 2) all.resize(2);  // a bias, a residual and the like
  return fmt::format("{}", fmt::join(all, " x "));
}

struct SlowProducts {
  double won = 0, worst = 0, share = 0;  // nanoseconds; of one; of the roof, of that one
  int64_t calls = 0;
  const Call* call = nullptr;
  const Span* span = nullptr;
};

struct ProductFinding {
  std::string cause, roof;
};

/// What keeps a product from matrix cores' full speed, and the type whose roof it would have without.
std::optional<ProductFinding> finding_of(const Trace& trace, const Piece& piece, const Roof& roof) {
  std::string dtype(dtype_of(*piece.call));
  bool tf32 = contains_word(piece.call->kernel, "tf32");
  for (const int32_t at : piece.spans) tf32 = tf32 || contains_word(trace.name_of(span_at(trace, at)), "tf32");
  if (dtype == "f32" && !tf32) {
    const std::string better = roof.tf32 > 0 ? "tf32" : roof.bf16 > 0 ? "bf16" : roof.f16 > 0 ? "f16" : "";
    if (better.empty()) return {};
    return ProductFinding{"", better};
  }
  if (dtype == "f64") return {};
  if (dtype == "f32") dtype = "tf32";
  const std::string dims = dims_to_blame(*piece.call, dtype == "tf32" ? 4 : 8);
  if (dims.empty()) return {};
  return ProductFinding{dims, dtype};
}

Advice product_advice(const AdviceInput& in, const ProductFinding& finding, const SlowProducts& slow) {
  Advice out = in.advice("matrix cores", slow.won);
  Places places;
  places.add(in.trace, slow.span, 1);
  places.name(out);
  const std::string what = fmt::format("{} of {} reaches {:.0f} % of what {} allows", slow.call->op,
                                       inputs_text(*slow.call), 100 * slow.share, finding.roof);
  const std::string calls = count_text(slow.calls / static_cast<int64_t>(in.steps.size()), "call");
  if (finding.cause.empty())
    out.what =
        fmt::format("{} because its inputs are f32: allow tf32, or use mixed precision ({} of a step).", what, calls);
  else
    out.what = fmt::format("{}: {}, no multiple of {}. Pad it ({} of a step).", what, finding.cause,
                           finding.roof == "tf32" ? 4 : 8, calls);
  return out;
}

}  // namespace

// A product that matrix cores may take reaches about kGood of the roof of its type, or of memory's. What it took more
// than that is won, where it is below kLow and something is known to be the cause: f32, for which only slow cores are
// there, or rows that do not begin at whole vectors, which kernels then read piece by piece.
Advices advise_on_matrix_cores(const AdviceInput& in) {
  const DeviceInfo* info = in.on_host() ? nullptr : device_info(in.trace, in.device);
  if (!info) return {};
  std::map<std::tuple<std::string, std::string, std::string>, SlowProducts> groups;
  for (const Piece& piece : device_pieces(in.trace)) {
    const Span& first = span_at(in.trace, piece.spans[0]);
    if (first.device != in.device || !in.is_in_steps(first.begin)) continue;
    if (!piece.call || piece.call->flops <= 0 || piece.time <= 0 || !is_product(piece.call->op)) continue;
    const std::optional<ProductFinding> finding = finding_of(in.trace, piece, info->roof);
    if (!finding) continue;
    const double time = seconds_in(piece.time);
    const double allowed = allowed_seconds(info->roof, finding->roof, true, piece.call->flops, piece.call->bytes);
    const double won = time - std::max(allowed / kGood, kLeastProduct);
    if (allowed <= 0 || allowed / time >= kLow || won <= 0) continue;
    // All that is f32 has one cause; of odd dims each has its own.
    SlowProducts& slow = groups[{finding->cause.empty() ? "" : piece.call->op, finding->cause, finding->roof}];
    slow.won += won * 1e9;
    ++slow.calls;
    if (won <= slow.worst) continue;
    std::tie(slow.worst, slow.share, slow.call, slow.span) = std::tuple(won, allowed / time, piece.call, &first);
  }
  Advices out;
  for (const auto& [key, slow] : groups) out.push_back(product_advice(in, {std::get<1>(key), std::get<2>(key)}, slow));
  return out;
}

// ---- copies

namespace {

/// By which libraries bring images into the layout that their products want, as a part of a convolution.
bool changes_layout(std::string_view kernel) {
  return contains_word(kernel, "nchwtonhwc") || contains_word(kernel, "nhwctonchw");
}

/// Whether images of the call lie as planes, which are one after the other.
bool has_planes(const Call& call) {
  for (size_t i = 0; i < std::min(call.dims.size(), call.strides.size()); ++i) {
    const auto &dims = call.dims[i], &strides = call.strides[i];
    if (dims.size() == 4 && strides.size() == 4 && dims[1] > 1 && strides[3] == 1 && strides[1] > 1) return true;
  }
  return false;
}

bool moves_images(const Trace& trace, const Span& span) {
  const std::string_view op = bare_op(op_of(trace, span));
  const Call* call = trace.call_of(span);
  return changes_layout(trace.name_of(span)) || (call && (op == "contiguous" || op == "copy" || op == "clone") &&
                                                 !call->dims.empty() && call->dims.back().size() == 4);
}

/// What norms and pools of images that lie as planes take longer than their bytes need: there kernels for channels last
/// may come near that.
double lost_on_planes(const AdviceInput& in) {
  double lost = 0;
  const DeviceInfo* info = device_info(in.trace, in.device);
  if (!info || in.on_host()) return 0;
  for (const Piece& piece : device_pieces(in.trace)) {
    const Span& first = span_at(in.trace, piece.spans[0]);
    if (first.device != in.device || !in.is_in_steps(first.begin) || !piece.call || !has_planes(*piece.call)) continue;
    const std::string_view op = bare_op(piece.call->op);
    if (op.find("batch_norm") == op.npos && op.find("pool") == op.npos) continue;
    const double allowed = allowed_seconds(info->roof, dtype_of(*piece.call), false, 0, piece.call->bytes);
    if (allowed > 0) lost += std::max(0.0, whole(piece.time) - allowed * 1e9);
  }
  return lost;
}

/// Calls f(span, what, nanoseconds) for all within steps that only copies.
template <class Fn>
void for_each_copy(const AdviceInput& in, const Fn& f) {
  for (const Piece& piece : in.on_host() ? host_pieces(in.trace) : device_pieces(in.trace)) {
    const Span& first = span_at(in.trace, piece.spans[0]);
    const std::string_view op = op_of(in.trace, first);
    const bool here = in.on_host() ? rank_of(in.trace, first) == in.rank : first.device == in.device;
    if (!here || !in.is_in_steps(first.begin)) continue;
    if (is_layout_copy(op)) {
      f(first, op, piece.time);
      continue;
    }
    for (size_t i = 0; i < piece.spans.size(); ++i)
      if (const Span& span = span_at(in.trace, piece.spans[i]); changes_layout(in.trace.name_of(span)))
        f(span, plain_kernel_name(in.trace.name_of(span)), piece.times[i]);
  }
  if (in.on_host()) return;
  for (const Span& span : in.trace.spans) {
    if (span.kind != Kind::Copy || span.device != in.device || !in.is_in_steps(span.begin)) continue;
    const std::string_view name = in.trace.name_of(span);
    if (contains_word(name, "dtod") || contains_word(name, "device -> device"))
      f(span, name, interval_of(span).length());
  }
}

}  // namespace

// A copy between layouts or types that is not made takes no time: all of it is won. What the run-time library copies
// within the device, and libraries between layouts within other operators, counts as well. Where images are copied,
// norms and pools of planes may gain, too: at most what they lose to memory's roof.
Advices advise_on_copies(const AdviceInput& in) {
  Places places;
  std::map<std::string, int64_t> ops;
  int64_t won = 0;
  bool images = false;
  for_each_copy(in, [&](const Span& span, std::string_view what, int64_t time) {
    won += time;
    images = images || moves_images(in.trace, span);
    ops[shortened(std::string(what), 40)] += time;
    places.add(in.trace, &span, whole(time));
  });
  Advice out = in.advice("layout copies", whole(won));
  if (out.share < kCopyShare) return {};
  places.name(out);
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [op, time] : ops) sorted.emplace_back(-time, op);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> parts;
  for (const auto& [time, op] : sorted)
    if (parts.size() < 4) parts.push_back(fmt::format("{} {}", op, time_text(in.advice("", whole(-time)).seconds)));
  out.what = fmt::format(
      "{:.0f} % of a step only moves or converts elements: {}. Keep tensors in the layout and type that "
      "their next use wants.",
      100 * out.share, fmt::join(parts, ", "));
  const double lost = images ? in.advice("", lost_on_planes(in)).seconds : 0;
  if (lost > kLittle * out.seconds) {
    out.at_most = out.seconds + lost;
    out.what += fmt::format(
        " Norms and pools of images that lie as planes take {} longer than their bytes need: of images that lie "
        "channels last some of that is won, too.",
        time_text(lost));
  }
  return {out};
}

// ---- imbalance

// With the same work for each, all ranks would come at the mean of the times at which they do come: the last one, whose
// time is the step's, is later than that by the mean of what all ranks waited.
Advices advise_on_imbalance(const AdviceInput& in) {
  if (!is_merged(in.trace)) return {};
  std::set<std::string> steps;
  std::map<int, int64_t> last;
  std::map<std::string, double> names;
  double waited = 0;
  int64_t calls = 0;
  for (const Waits& row : waits_of(in.trace)) {
    steps.insert(row.step);
    waited += row.mean_wait();
    names[row.name] += row.mean_wait();
    last[row.last] += row.last_calls;
    calls += row.calls;
  }
  if (steps.empty() || waited <= 0) return {};
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto late = std::max_element(last.begin(), last.end(), less);
  Advice out = in.advice("imbalance", 0);
  out.seconds = waited / static_cast<double>(steps.size());
  out.share = out.seconds / in.step_seconds;
  out.op = std::max_element(names.begin(), names.end(), less)->first;
  out.what = fmt::format(
      "ranks wait for each other, {} of a step on average; rank {} comes last to {} of {}. Give all of "
      "them the same work.",
      time_text(out.seconds), late->first, late->second, count_text(calls, "collective"));
  return {out};
}

}  // namespace tessera::profiler
