// Functions of elements that are graphs of maps: strip by strip through all of them, or a map after the other.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/map_graph.h"
#include "kernels/cpu/map_chains.h"
#include "kernels/shared/lies_alike.h"
#include "kernels/shared/map_calls.h"
#include "kernels/shared/tables.h"
#include "tile/arch/cpu/stream.h"

namespace tessera::cpu_kernels {
namespace {

bool is_constant(const GraphNode& node) { return node.op->name == "full"; }

/// A graph as steps on values, for tensors that lie so.
class MapProgram {
 public:
  explicit MapProgram(const Call& call) : graph_(*map_graph_of(call.attrs).graph), call_(call) {
    lowered_.assign(graph_.values.size(), -1);
    possible_ = add_tensors() &&
                std::all_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const GraphNode& node) { return add(node); });
    if (!possible_) return;
    join_polynomials();
    join_negations();
    add_outputs();
    order();
    join_chains(program_, static_cast<size_t>(once_), static_cast<int>(call_.out.size()));
    possible_ = give_room();
  }
  /// Whether there is one.
  explicit operator bool() const { return possible_; }

  void launch(Plan& plan) const {
    MapProgramArgs args{};
    args.count = call_.out[0].numel();
    args.cost = cost_;
    args.strip = strip_;
    args.streams = streams_;
    args.outputs = static_cast<int>(call_.out.size());
    args.tensors = args.outputs + static_cast<int>(call_.in.size());
    args.values = static_cast<int>(values_.size());
    args.once = once_;
    args.steps = static_cast<int>(steps_.size());
    std::vector<MapValue> values = values_;
    for (const auto& [v, layout] : layouts_) values[v].layout = plan.keep(layout);
    args.value = plan.keep(values.data(), values.size());
    std::vector<MapStep> steps = steps_;
    for (MapStep& step : steps) {
      if (step.polynomial.addends) step.polynomial.addends = kept_addends(plan, step);
      if (step.links > 0) step.link = plan.keep(program_.chain_of(step).data(), program_.chain_of(step).size());
    }
    args.step = plan.keep(steps.data(), steps.size());
    plan.launch("strips", map_program_table().run, args);
  }

 private:
  static constexpr int kUnit = 64, kLongest = 4096, kCached = 24 << 10, kMostLocal = 32;
  using Code = void (*)();
  using V = int;

  static int bytes_of(Scalar type) { return static_cast<int>(size_of(static_cast<DType>(type))); }

  V new_value(Scalar type, bool repeats) {
    values_.push_back({nullptr, bytes_of(type), 0, repeats, false, nullptr, nullptr, 0});
    types_.push_back(type);
    return static_cast<V>(values_.size()) - 1;
  }
  bool repeats(V v) const { return values_[static_cast<size_t>(v)].repeats; }
  V& lowered(int32_t v) { return lowered_[static_cast<size_t>(v)]; }

  // The outputs are dense in one order of their dims, in which elements are taken.
  bool add_tensors() {
    const Operand& out = call_.out[0];
    if (!is_dense_in_some_order(out)) return false;
    long long bytes = 0;
    for (const Operand& t : call_.out) {
      if (!lies_as(t, out)) return false;
      bytes += t.numel() * static_cast<long long>(size_of(t.dtype()));
      values_[static_cast<size_t>(new_value(scalar_of(t.dtype()), false))].data = t.data_ptr();
    }
    for (size_t i = 0; i < call_.in.size(); ++i) {
      lowered(graph_.inputs[i]) = static_cast<V>(values_.size());
      add_input(call_.in[i], out);
    }
    streams_ = bytes >= tile::cpu::streamed_bytes;
    return true;
  }

  void add_input(const Operand& t, const Operand& out) {
    const int rank = static_cast<int>(out.dim());
    long long lengths[max_rank];
    set_lengths(lengths, out);
    TensorArg to = operand(out, rank), from = operand(t, rank);
    sort_dims(lengths, rank, std::array{&to, &from});
    const MapLayout layout = joined(lengths, from.strides, rank, bytes_of(from.type));
    const bool repeats = out.numel() > 1 && layout.rank == 1 && layout.strides[0] == 0;
    MapValue& value = values_[static_cast<size_t>(new_value(from.type, repeats))];
    value.data = t.data_ptr();
    value.copy = map_program_table().conversion(from.type, from.type);
    if (layout.rank > 1 || (!repeats && layout.strides[0] != value.size))
      layouts_.push_back({values_.size() - 1, layout});
  }

  // Dims of one element are dropped, and those that can be walked as one are one.
  static MapLayout joined(const long long* lengths, const long long* strides, int rank, int size) {
    MapLayout all{1, {1}, {size}};
    bool first = true;
    for (int d = 0; d < rank; ++d) {
      if (lengths[d] == 1) continue;
      const long long stride = strides[d] * size;
      int& n = all.rank;
      if (!first && all.strides[n - 1] == stride * lengths[d]) {
        all.lengths[n - 1] *= lengths[d];
        all.strides[n - 1] = stride;
      } else {
        if (!first) ++n;
        all.lengths[n - 1] = lengths[d];
        all.strides[n - 1] = stride;
      }
      first = false;
    }
    return all;
  }

  bool add(const GraphNode& node) {
    const GraphValue& made = graph_.values[static_cast<size_t>(node.outputs[0])];
    const Scalar type = scalar_of(made.meta.dtype);
    V& result = lowered(node.outputs[0]);
    if (is_constant(node)) {
      result = new_value(type, true);
      MapValue& value = values_.back();
      value.copy = map_program_table().conversion(type, Scalar::f64);
      value.number = node.attrs.as<CreateAttrs>().a;
      return true;
    }
    if (node.op->name == "cast") {
      result = converted(lowered(node.inputs[0]), type);
      return true;
    }
    SmallVector<DType, 4> dtypes;
    for (const int32_t v : node.inputs) dtypes.push_back(graph_.values[static_cast<size_t>(v)].meta.dtype);
    const auto map = map_call(*node.op, node.attrs, {dtypes.data(), dtypes.size()}, made.meta.dtype);
    if (!map) return false;
    MapStep step{};
    step.code = map_program_table().map(map->op, map->compute);
    step.op = map->op;
    step.compute = map->compute;
    step.inputs = static_cast<short>(node.inputs.size());
    std::copy(map->numbers, map->numbers + 2, step.numbers);
    bool once = true;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool condition = map->op == MapOp::where && i == 0;
      const V from = converted(lowered(node.inputs[i]), condition ? Scalar::boolean : map->compute);
      step.from[i] = static_cast<short>(from);
      once &= repeats(from);
    }
    const V to = new_value(map->op >= MapOp::logical_not ? Scalar::boolean : map->compute, once);
    step.to = static_cast<short>(to);
    steps_.push_back(step);
    cost_ += once ? 0 : map_program_table().cost(map->op, map->compute);
    lowered(node.outputs[0]) = converted(to, type);
    return true;
  }

  V converted(V from, Scalar type) {
    if (types_[static_cast<size_t>(from)] == type) return from;
    const V to = new_value(type, repeats(from));
    convert(to, from);
    return to;
  }
  void convert(V to, V from) {
    MapStep step{};
    step.code = map_program_table().conversion(types_[static_cast<size_t>(to)], types_[static_cast<size_t>(from)]);
    step.converts = true;
    step.inputs = 1;
    step.to = static_cast<short>(to);
    step.from[0] = static_cast<short>(from);
    steps_.push_back(step);
    cost_ += repeats(to) ? 0 : 2;
  }

  bool is_map(const MapStep& step, MapOp op) const {
    return !step.converts && step.code == map_program_table().map(op, types_[static_cast<size_t>(step.to)]);
  }
  bool adds_number(const MapStep& step) const { return is_map(step, MapOp::scale_shift) && step.numbers[0] == 1; }

  // Numbers added in turns with products by one value, whose results nobody else reads, are one step: it stands where
  // the last of them stood.
  void join_polynomials() {
    std::vector<int> reads(values_.size(), 0), reader(values_.size(), -1);
    for (size_t i = 0; i < steps_.size(); ++i)
      for (short k = 0; k < steps_[i].inputs; ++k) {
        ++reads[static_cast<size_t>(steps_[i].from[k])];
        reader[static_cast<size_t>(steps_[i].from[k])] = static_cast<int>(i);
      }
    for (const int32_t v : graph_.outputs) reads[static_cast<size_t>(lowered(v))] += 2;
    std::vector<bool> gone(steps_.size(), false);
    const auto next = [&](int i) {
      const auto to = static_cast<size_t>(steps_[static_cast<size_t>(i)].to);
      return reads[to] == 1 ? reader[to] : -1;
    };
    for (size_t begin = 0; begin < steps_.size(); ++begin) {
      if (gone[begin] || !adds_number(steps_[begin]) || repeats(steps_[begin].to)) continue;
      std::vector<int> chain{static_cast<int>(begin)};
      std::vector<double> addends{steps_[begin].numbers[1]};
      short factor = -1;
      long long products = 0;
      for (int i = next(chain.back()); i >= 0; i = next(i)) {
        const MapStep &step = steps_[static_cast<size_t>(i)], &before = steps_[static_cast<size_t>(chain.back())];
        if (static_cast<long long>(addends.size()) == products) {  // an addend's turn
          if (!adds_number(step)) break;
          addends.push_back(step.numbers[1]);
        } else {
          const short other = step.from[step.from[0] == before.to ? 1 : 0];
          if (!is_map(step, MapOp::mul) || other == before.to || (factor >= 0 && other != factor)) break;
          factor = other;
          ++products;
        }
        chain.push_back(i);
      }
      const Code code = map_program_table().polynomial(types_[static_cast<size_t>(steps_[begin].to)]);
      if (products < 2 || !code) continue;
      MapStep& last = steps_[static_cast<size_t>(chain.back())];
      last = {code, false, 2, last.to, {steps_[begin].from[0], factor}, {}, {}};
      last.polynomial = {&last, products, static_cast<long long>(addends.size()) > products};
      addends_.push_back({last.to, std::move(addends)});
      for (const int i : chain) gone[static_cast<size_t>(i)] = &steps_[static_cast<size_t>(i)] != &last;
    }
    drop(gone);
  }

  /// Of each value: the step that makes it, or -1, and how many read it.
  struct Uses {
    std::vector<int> maker, reads;
  };
  Uses uses() {
    Uses all{std::vector<int>(values_.size(), -1), std::vector<int>(values_.size(), 0)};
    for (const int32_t v : graph_.outputs) ++all.reads[static_cast<size_t>(lowered(v))];
    for (size_t i = 0; i < steps_.size(); ++i) {
      all.maker[static_cast<size_t>(steps_[i].to)] = static_cast<int>(i);
      for (short k = 0; k < steps_[i].inputs; ++k) ++all.reads[static_cast<size_t>(steps_[i].from[k])];
    }
    return all;
  }

  void drop(const std::vector<bool>& gone) {
    size_t kept = 0;
    for (size_t i = 0; i < steps_.size(); ++i)
      if (!gone[i]) steps_[kept++] = steps_[i];
    steps_.resize(kept);
  }

  // A number less a value is one step.
  void join_negations() {
    auto [maker, reads] = uses();
    std::vector<bool> gone(steps_.size(), false);
    for (MapStep& step : steps_) {
      if (!adds_number(step) || repeats(step.to)) continue;
      const int made = maker[static_cast<size_t>(step.from[0])];
      if (made < 0 || !is_map(steps_[static_cast<size_t>(made)], MapOp::neg)) continue;
      gone[static_cast<size_t>(made)] = --reads[static_cast<size_t>(step.from[0])] == 0;
      step.from[0] = steps_[static_cast<size_t>(made)].from[0];
      step.numbers[0] = -1;
    }
    drop(gone);
  }
  // In the type that the step computes in.
  const void* kept_addends(Plan& plan, const MapStep& step) const {
    const auto found =
        std::find_if(addends_.begin(), addends_.end(), [&](const auto& a) { return a.first == step.to; });
    if (types_[static_cast<size_t>(step.to)] == Scalar::f64)
      return plan.keep(found->second.data(), found->second.size());
    const std::vector<float> narrow(found->second.begin(), found->second.end());
    return plan.keep(narrow.data(), narrow.size());
  }

  // What a step makes for each element goes to the output at once, anything else is copied.
  void add_outputs() {
    const V tensors = static_cast<V>(call_.out.size() + call_.in.size());
    for (size_t i = 0; i < call_.out.size(); ++i) {
      const V out = static_cast<V>(i), from = lowered(graph_.outputs[i]);
      if (from < tensors || repeats(from)) {
        convert(out, from);
        continue;
      }
      for (MapStep& step : steps_) {
        if (step.to == from) {
          for (auto& [to, numbers] : addends_)
            if (to == from && step.polynomial.addends) to = static_cast<short>(out);
          step.to = static_cast<short>(out);
        }
        for (short& v : step.from)
          if (v == from) v = static_cast<short>(out);
      }
      for (V& v : lowered_)
        if (v == from) v = out;
    }
  }

  // What is computed once comes first.
  void order() {
    const auto middle =
        std::stable_partition(steps_.begin(), steps_.end(), [&](const MapStep& step) { return repeats(step.to); });
    once_ = static_cast<int>(middle - steps_.begin());
  }

  // Values that one chain writes and reads have a unit, at the room's begin. How many there are at once.
  int find_local(size_t tensors) {
    constexpr size_t none = ~size_t{0}, several = none - 1;
    std::vector<size_t> step_of(values_.size(), none);
    const auto note = [&](short v, size_t s) {
      size_t& known = step_of[static_cast<size_t>(v)];
      known = known == none || known == s ? s : several;
    };
    for (size_t s = 0; s < steps_.size(); ++s) {
      program_.each_read(steps_[s], [&](short v) { note(v, s); });
      program_.each_written(steps_[s], [&](short v) { note(v, s); });
    }
    int most = 0;
    for (size_t s = static_cast<size_t>(once_); s < steps_.size(); ++s) {
      int count = 0;
      program_.each_written(steps_[s], [&](short written) {
        const auto v = static_cast<size_t>(written);
        if (steps_[s].links == 0 || v < tensors || step_of[v] != s || count == kMostLocal) return;
        values_[v].local = true;
        values_[v].offset = kUnit * 8 * count++;
      });
      most = std::max(most, count);
    }
    return most;
  }

  // Tensors' ends and what repeats have a unit each; inputs that are gathered have a strip, and other values share
  // strips, from the step that makes them to the last one that reads them.
  bool give_room() {
    if (values_.size() > static_cast<size_t>(MapProgramArgs::most_values)) return false;
    const size_t tensors = call_.out.size() + call_.in.size();
    const auto has_strip = [&](size_t v) {
      return v < tensors ? streams_ && v < call_.out.size() : !values_[v].repeats && !values_[v].local;
    };
    int room = find_local(tensors) * kUnit * 8, widest = 1;
    for (size_t v = 0; v < values_.size(); ++v) {
      if (has_strip(v)) {
        widest = std::max(widest, values_[v].size);
        continue;
      }
      if (values_[v].local) continue;
      values_[v].offset = room;
      room += kUnit * 8;
    }
    std::vector<size_t> last(values_.size(), 0);
    for (size_t s = 0; s < steps_.size(); ++s)
      program_.each_read(steps_[s], [&](short v) { last[static_cast<size_t>(v)] = s; });
    std::vector<int> place(values_.size(), 0), free;
    int places = 0;
    for (size_t v = 0; streams_ && v < call_.out.size(); ++v) place[v] = places++;
    for (const auto& [v, layout] : layouts_) {
      place[v] = places++;
      widest = std::max(widest, values_[v].size);
    }
    for (size_t s = static_cast<size_t>(once_); s < steps_.size(); ++s) {
      const auto in_strip = [&](short v) {
        return static_cast<size_t>(v) >= tensors && has_strip(static_cast<size_t>(v));
      };
      program_.each_written(steps_[s], [&](short v) {
        if (!in_strip(v)) return;
        if (free.empty()) free.push_back(places++);
        place[static_cast<size_t>(v)] = free.back();
        free.pop_back();
      });
      std::vector<short> seen;
      program_.each_read(steps_[s], [&](short v) {
        if (!in_strip(v) || last[static_cast<size_t>(v)] != s || std::count(seen.begin(), seen.end(), v)) return;
        free.push_back(place[static_cast<size_t>(v)]);
        seen.push_back(v);
      });
    }
    const int left = std::min(kCached, MapProgramArgs::room - room);
    // One chain reads nothing twice, other steps find their operands in the cache.
    const int cached = places + (steps_.size() - static_cast<size_t>(once_) > 1 ? static_cast<int>(tensors) : 0);
    strip_ = std::clamp(left / (std::max(cached, 1) * widest) / kUnit * kUnit, kUnit, kLongest);
    for (size_t v = 0; v < values_.size(); ++v)
      if (has_strip(v)) values_[v].offset = room + place[v] * strip_ * widest;
    for (const auto& [v, layout] : layouts_) values_[v].offset = room + place[v] * strip_ * widest;
    return room + places * strip_ * widest <= MapProgramArgs::room;
  }

  const Graph& graph_;
  const Call& call_;
  MapSteps program_;
  std::vector<MapValue>& values_ = program_.values;
  std::vector<Scalar>& types_ = program_.types;
  std::vector<MapStep>& steps_ = program_.steps;
  std::vector<V> lowered_;                                      // of the graph's values
  std::vector<std::pair<size_t, MapLayout>> layouts_;           // of inputs that are not dense
  std::vector<std::pair<short, std::vector<double>>> addends_;  // of polynomials, by their values
  long long cost_ = 0;
  int once_ = 0, strip_ = kUnit;
  bool possible_ = false, streams_ = false;
};

Reason takes_strips(const Call& call) { return MapProgram(call) ? Reason::Ok : Reason::Layout; }
void plan_strips(const Call& call, Plan& plan) { MapProgram(call).launch(plan); }

constexpr Kernel kernels_of_graphs[] = {{.name = "strips", .supports = takes_strips, .plan = plan_strips},
                                        {.name = "calls", .plan = call_maps}};

}  // namespace

std::span<const KernelTableEntry> map_graph_kernels() {
  static constexpr KernelTableEntry entries[] = {{"map_graph", kernels_of_graphs}};
  return entries;
}

}  // namespace tessera::cpu_kernels
