#include "plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera::app {
namespace {

constexpr double kWidth = 860, kHeight = 480, kLeft = 70, kRight = 20, kTop = 44, kBottom = 52;
constexpr const char* kColors[] = {"#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2"};

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

// One axis: values to pixels, and round tick values.
struct Axis {
  double low = INFINITY, high = -INFINITY, from, to;
  bool logarithmic;

  Axis(double from, double to, bool logarithmic) : from(from), to(to), logarithmic(logarithmic) {}
  bool shows(double v) const { return std::isfinite(v) && (!logarithmic || v > 0); }
  double scale(double v) const { return logarithmic ? std::log10(v) : v; }
  void include(double v) {
    low = std::min(low, scale(v));
    high = std::max(high, scale(v));
  }
  void close() {
    if (low > high) low = 0, high = 1;
    // Values that differ by rounding alone: ticks between them would not come to an end.
    if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) low -= 0.5, high += 0.5;
    double margin = 0.03 * (high - low);
    low -= margin;
    high += margin;
  }
  double pixel(double v) const { return from + (scale(v) - low) / (high - low) * (to - from); }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (logarithmic && high - low > 1) {
      for (double e = std::ceil(low); e <= high; ++e) out.push_back(std::pow(10, e));
      return out;
    }
    double lo = logarithmic ? std::pow(10, low) : low, hi = logarithmic ? std::pow(10, high) : high;
    double raw = (hi - lo) / 6, unit = std::pow(10, std::floor(std::log10(raw)));
    double step = unit * (raw / unit < 1.5 ? 1 : raw / unit < 3.5 ? 2 : raw / unit < 7.5 ? 5 : 10);
    for (double t = std::ceil(lo / step) * step; t <= hi; t += step) out.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
    return out;
  }
};

std::string frame(const Plot& plot, const Axis& x, const Axis& y) {
  std::string out;
  for (double t : x.ticks())
    out += fmt::format(
        "<line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}' stroke='#e5e7eb'/><text x='{0:.1f}' y='{3}' "
        "text-anchor='middle'>{4:g}</text>\n",
        x.pixel(t), kTop, kHeight - kBottom, kHeight - kBottom + 18, t);
  for (double t : y.ticks())
    out += fmt::format(
        "<line x1='{1}' x2='{2}' y1='{0:.1f}' y2='{0:.1f}' stroke='#e5e7eb'/><text x='{3}' y='{4:.1f}' "
        "text-anchor='end'>{5:g}</text>\n",
        y.pixel(t), kLeft, kWidth - kRight, kLeft - 8, y.pixel(t) + 4, t);
  out += fmt::format("<text x='{}' y='26' text-anchor='middle' font-size='16'>{}</text>\n", kWidth / 2,
                     escape(plot.title));
  out += fmt::format("<text x='{}' y='{}' text-anchor='middle'>{}</text>\n", (kLeft + kWidth - kRight) / 2,
                     kHeight - 12, escape(plot.x_label));
  out += fmt::format("<text x='18' y='{0}' text-anchor='middle' transform='rotate(-90 18 {0})'>{1}</text>\n",
                     kHeight / 2, escape(plot.y_label));
  return out;
}

}  // namespace

std::string to_svg(const Plot& plot) {
  Axis x(kLeft, kWidth - kRight, plot.log_x), y(kHeight - kBottom, kTop, plot.log_y);
  for (const Series& s : plot.series)
    for (auto [px, py] : s.points)
      if (x.shows(px) && y.shows(py)) x.include(px), y.include(py);
  x.close();
  y.close();
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' font-family='sans-serif' "
      "font-size='12' fill='#111827'>\n<rect width='100%' height='100%' fill='white'/>\n",
      kWidth, kHeight);
  out += frame(plot, x, y);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    const char* color = kColors[i % std::size(kColors)];
    std::string points;
    for (auto [px, py] : s.points)
      if (x.shows(px) && y.shows(py)) points += fmt::format("{:.1f},{:.1f} ", x.pixel(px), y.pixel(py));
    out += fmt::format("<polyline fill='none' stroke='{}' stroke-width='{}' stroke-opacity='{}' points='{}'/>\n", color,
                       s.faint ? 1 : 2, s.faint ? 0.35 : 1.0, points);
    out += fmt::format("<text x='{}' y='{}' text-anchor='{}' fill='{}'>{}</text>\n",
                       plot.labels_left ? kLeft + 8 : kWidth - kRight - 8, kTop + 16 + 16 * i,
                       plot.labels_left ? "start" : "end", color, escape(s.label));
  }
  return out + "</svg>\n";
}

}  // namespace tessera::app
