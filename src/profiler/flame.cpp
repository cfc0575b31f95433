// Trees of time, and a flame graph of them as one SVG without scripts.
#include "profiler/flame.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "profiler/report.h"

namespace tessera::profiler {
namespace {

/// Nodes in the order in which they first appear; nodes() puts each before its children.
class FlameTree {
 public:
  int child(int parent, Kind kind, std::string_view name) {
    const auto [it, added] = places_.try_emplace({parent, kind, std::string(name)}, static_cast<int>(nodes_.size()));
    if (added) {
      const int depth = parent < 0 ? 0 : nodes_[static_cast<size_t>(parent)].depth + 1;
      nodes_.push_back({std::string(name), kind, depth});
      parents_.push_back(parent);
    }
    return it->second;
  }

  void add(int node, int64_t time) {
    nodes_[static_cast<size_t>(node)].total += time;
    ++nodes_[static_cast<size_t>(node)].calls;
  }
  void add_to_all_above(int node, int64_t time) {
    for (; node >= 0; node = parents_[static_cast<size_t>(node)]) {
      nodes_[static_cast<size_t>(node)].total += time;
      ++nodes_[static_cast<size_t>(node)].calls;
    }
  }
  void add_device(int node, int64_t time) {
    for (; node >= 0; node = parents_[static_cast<size_t>(node)]) nodes_[static_cast<size_t>(node)].device += time;
  }

  std::vector<FlameNode> nodes() const {
    std::vector<std::vector<int>> children(nodes_.size() + 1);  // the last: of the root
    for (size_t i = 0; i < nodes_.size(); ++i)
      children[parents_[i] < 0 ? nodes_.size() : static_cast<size_t>(parents_[i])].push_back(static_cast<int>(i));
    std::vector<FlameNode> out;
    out.reserve(nodes_.size());
    std::vector<int> waiting(children.back().rbegin(), children.back().rend());
    while (!waiting.empty()) {
      const auto at = static_cast<size_t>(waiting.back());
      waiting.pop_back();
      out.push_back(nodes_[at]);
      waiting.insert(waiting.end(), children[at].rbegin(), children[at].rend());
    }
    return out;
  }

 private:
  std::vector<FlameNode> nodes_;
  std::vector<int> parents_;
  std::map<std::tuple<int, Kind, std::string>, int> places_;
};

int64_t length_of(const Span& span) { return std::max<int64_t>(span.end - span.begin, 0); }

/// "ProfilerStep#3" is a step as others are.
std::string_view flame_name(const Trace& trace, const Span& span) {
  const std::string_view name = trace.name_of(span);
  return span.kind == Kind::Step ? name.substr(0, name.find('#')) : name;
}

struct OpenFrame {
  int node;
  int64_t end;
};

// The picture.
constexpr double kWidth = 1200, kMargin = 12, kFrame = 18, kLetter = 6.7;
constexpr double kThinnest = 0.25;  // frames below it are no longer seen
constexpr const char* kStyle =
    "text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1b1f24}"
    ".t{font:600 14px system-ui,-apple-system,'Segoe UI',sans-serif}"
    ".s{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#57606a}"
    ".b{fill:#fff}.k0{fill:#c9ced6}.k1{fill:#c3b5e8}.k2{fill:#a9cbb7}.k3{fill:#9ec1ea}.k4{fill:#e6cf96}"
    ".k5{fill:#f0b39a}.k6{fill:#e3a9c3}.k7{fill:#d6b8a0}rect.f{stroke:#fff;stroke-width:.6}"
    "g:hover>rect.f{stroke:#1b1f24}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ee}.s{fill:#9aa4b0}.b{fill:#14171c}.k0{fill:#3f4650}"
    ".k1{fill:#54448a}.k2{fill:#2f5f45}.k3{fill:#2c5586}.k4{fill:#6d5618}.k5{fill:#8a4a30}.k6{fill:#7a3c5a}"
    ".k7{fill:#624a36}rect.f{stroke:#14171c}g:hover>rect.f{stroke:#e6e9ee}}";
constexpr const char* kKindNames[] = {"step", "range", "module", "operator", "runtime", "kernel", "copy", "fill"};

/// The first characters of it that fit, with a sign that some are missing.
std::string clipped(std::string_view text, double width) {
  const auto fits = static_cast<size_t>(std::max((width - 6) / kLetter, 0.0));
  size_t letters = 0, end = 0, shorter = 0;
  for (; end < text.size() && letters <= fits; ++letters) {
    if (letters + 1 == fits) shorter = end;
    do ++end;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  if (letters <= fits) return std::string(text);
  return fits < 3 ? std::string() : std::string(text.substr(0, shorter)) + "…";
}

int64_t total_of(const std::vector<FlameNode>& nodes) {
  int64_t total = 0;
  for (const FlameNode& node : nodes)
    if (node.depth == 0) total += node.total;
  return total;
}

void draw_frame(std::string& out, const FlameNode& node, double x, double y, double width, int64_t total) {
  std::string tip = fmt::format(
      "{} ({}): {}, {:.1f} %, {} call{}", node.name, kKindNames[static_cast<int>(node.kind)], duration_text(node.total),
      100.0 * static_cast<double>(node.total) / static_cast<double>(total), node.calls, node.calls == 1 ? "" : "s");
  if (node.device > 0) tip += fmt::format("; {} on devices", duration_text(node.device));
  out +=
      fmt::format(R"(<g><title>{}</title><rect class="{} k{}" x="{:.2f}" y="{:.0f}" width="{:.2f}" height="{:.0f}"/>)",
                  escape_markup(tip), width < 3 ? "n" : "f", static_cast<int>(node.kind), x, y, width, kFrame);
  const std::string label = clipped(node.name, width);
  if (!label.empty())
    out += fmt::format(R"(<text x="{:.2f}" y="{:.0f}">{}</text>)", x + 3, y + 13, escape_markup(label));
  out += "</g>\n";
}

/// Draws the tree below y, and moves y below the tree.
void draw_tree(std::string& out, const std::vector<FlameNode>& nodes, double& y) {
  const int64_t total = total_of(nodes);
  const double scale = (kWidth - 2 * kMargin) / static_cast<double>(total);
  std::vector<double> next = {kMargin};  // by depth: where the next frame begins
  double bottom = y;
  for (const FlameNode& node : nodes) {
    const auto depth = static_cast<size_t>(node.depth);
    next.resize(depth + 1);
    const double x = next[depth], width = scale * static_cast<double>(node.total);
    next[depth] += width;
    next.push_back(x);
    if (width < kThinnest) continue;
    const double top = y + kFrame * static_cast<double>(depth);
    draw_frame(out, node, x, top, width, total);
    bottom = std::max(bottom, top + kFrame);
  }
  y = bottom;
}

void draw_section(std::string& out, const std::vector<FlameNode>& nodes, std::string_view title, double& y) {
  const int64_t total = total_of(nodes);
  if (total <= 0) return;
  y += 24;
  out += fmt::format(R"(<text class="t" x="{:.0f}" y="{:.0f}">{}: {}</text>)"
                     "\n",
                     kMargin, y, title, duration_text(total));
  y += 10;
  draw_tree(out, nodes, y);
  y += 10;
}

void draw_legend(std::string& out, const std::vector<FlameNode>& host, const std::vector<FlameNode>& device,
                 double& y) {
  bool used[std::size(kKindNames)] = {};
  for (const auto* nodes : {&host, &device})
    for (const FlameNode& node : *nodes) used[static_cast<size_t>(node.kind)] = true;
  y += 22;
  double x = kMargin;
  for (size_t kind = 0; kind < std::size(kKindNames); ++kind) {
    if (!used[kind]) continue;
    out += fmt::format(R"(<rect class="k{}" x="{:.0f}" y="{:.0f}" width="11" height="11"/>)", kind, x, y - 10);
    out += fmt::format(R"(<text class="s" x="{:.0f}" y="{:.0f}">{}</text>)"
                       "\n",
                       x + 16, y, kKindNames[kind]);
    x += 84;
  }
}

}  // namespace

std::vector<FlameNode> host_flame(const Trace& trace) {
  FlameTree tree;
  std::vector<int> node_of(trace.spans.size(), -1);
  std::unordered_map<int64_t, std::vector<OpenFrame>> threads;
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (is_on_device(span.kind)) continue;
    std::vector<OpenFrame>& open = threads[span.thread];
    while (!open.empty() && open.back().end <= span.begin) open.pop_back();
    // A child that outlasts its parent counts only within it, so that children never add up to more.
    const int64_t end = open.empty() ? span.end : std::min(span.end, open.back().end);
    const int node = tree.child(open.empty() ? -1 : open.back().node, span.kind, flame_name(trace, span));
    tree.add(node, std::max<int64_t>(end - span.begin, 0));
    node_of[i] = node;
    open.push_back({node, end});
  }
  for (const Span& span : trace.spans)
    if (is_on_device(span.kind) && span.owner >= 0)
      tree.add_device(node_of[static_cast<size_t>(span.owner)], length_of(span));
  return tree.nodes();
}

std::vector<FlameNode> device_flame(const Trace& trace) {
  FlameTree tree;
  int32_t first = -1;
  bool several = false;
  for (const Span& span : trace.spans) {
    if (!is_on_device(span.kind)) continue;
    several |= first >= 0 && span.device != first;
    first = span.device;
  }
  for (const Span& span : trace.spans) {
    if (!is_on_device(span.kind)) continue;
    int node = several ? tree.child(-1, Kind::Range, fmt::format("device {}", span.device)) : -1;
    if (const Call* call = trace.call_of(span)) {
      for (size_t begin = 0; begin < call->path.size();) {
        const size_t end = std::min(call->path.find('.', begin), call->path.size());
        node = tree.child(node, Kind::Module, std::string_view(call->path).substr(begin, end - begin));
        begin = end + 1;
      }
      node = tree.child(node, Kind::Op, call->op);
    } else if (span.kind == Kind::Kernel) {
      node = tree.child(node, Kind::Op, "(operator not known)");
    }
    node = tree.child(node, span.kind, trace.name_of(span));
    tree.add_to_all_above(node, length_of(span));
  }
  return tree.nodes();
}

std::string duration_text(int64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (value < 1e3) return fmt::format("{} ns", nanoseconds);
  if (value < 1e6) return fmt::format("{:.3g} µs", value / 1e3);
  if (value < 1e9) return fmt::format("{:.3g} ms", value / 1e6);
  return fmt::format("{:.4g} s", value / 1e9);
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = byte < 0x80                   ? 1
                          : byte >= 0xC2 && byte < 0xE0 ? 2
                          : byte >= 0xE0 && byte < 0xF0 ? 3
                          : byte >= 0xF0 && byte < 0xF5 ? 4
                                                        : 0;
    bool valid =
        length > 0 && i + length <= text.size() && (byte >= 0x20 || byte == '\t' || byte == '\n') && byte != 0x7F;
    for (size_t k = 1; valid && k < length; ++k) valid = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    if (valid && length >= 3) {  // not the shortest form, surrogates, beyond the last character, no characters of XML
      const auto next = static_cast<unsigned char>(text[i + 1]);
      if ((byte == 0xE0 && next < 0xA0) || (byte == 0xED && next >= 0xA0) || (byte == 0xF0 && next < 0x90) ||
          (byte == 0xF4 && next >= 0x90) ||
          (byte == 0xEF && next == 0xBF && static_cast<unsigned char>(text[i + 2]) >= 0xBE))
        valid = false;
    }
    if (!valid) {
      out += "\uFFFD";
      ++i;
      continue;
    }
    switch (byte) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += text.substr(i, length);
    }
    i += length;
  }
  return out;
}

std::string flame_svg(const Trace& trace) {
  const std::vector<FlameNode> host = host_flame(trace), device = device_flame(trace);
  std::string body;
  double y = 0;
  draw_legend(body, host, device, y);
  draw_section(body, host, "Host time by range, module and operator", y);
  draw_section(body, device, "Device time by module, operator and kernel", y);
  if (total_of(host) + total_of(device) <= 0) {
    y += 4;
    body += fmt::format(R"(<text class="t" x="{:.0f}" y="{:.0f}">Nothing was recorded.</text>)", kMargin, y);
  }
  y += 12;
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img">)"
             "\n<title>Flame graph of {2}</title>\n<style>{3}</style>\n"
             R"(<rect class="b" width="{0:.0f}" height="{1:.0f}"/>)"
             "\n",
             kWidth, y, escape_markup(trace.host.empty() ? "a profile" : trace.host), kStyle) +
         body + "</svg>\n";
}

}  // namespace tessera::profiler
