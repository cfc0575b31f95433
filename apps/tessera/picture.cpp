#include "picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tessera::app {
namespace {

constexpr int kMost = 256;  // pixels of a side

std::string big_endian(uint32_t x) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(x >> shift);
  return out;
}

// A chunk of a PNG file, with its cyclic redundancy check.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  uint32_t crc = ~0u;
  for (unsigned char c : checked) {
    crc ^= c;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return big_endian(static_cast<uint32_t>(data.size())) + checked + big_endian(~crc);
}

// A zlib stream of blocks that are stored as they are.
std::string stored(const std::string& data) {
  std::string out = "\x78\x01";
  uint32_t a = 1, b = 0;
  for (unsigned char c : data) {
    a = (a + c) % 65521;
    b = (b + a) % 65521;
  }
  for (size_t at = 0; at < data.size(); at += 65535) {
    const size_t length = std::min<size_t>(65535, data.size() - at);
    out += static_cast<char>(at + length == data.size());
    for (size_t n : {length, ~length}) {
      out += static_cast<char>(n);
      out += static_cast<char>(n >> 8);
    }
    out += data.substr(at, length);
  }
  return out + big_endian(b << 16 | a);
}

// PNG, 8 bits of grey.
std::string to_png(const Picture& p) {
  std::string rows;
  for (int i = 0; i < p.height; ++i) {
    rows += '\0';  // unfiltered
    for (int j = 0; j < p.width; ++j) {
      const float v = p.pixels[static_cast<size_t>(i) * p.width + j];
      rows += static_cast<char>(std::lround(255 * (v > 0 ? std::min(v, 1.0f) : 0)));  // NaN is black
    }
  }
  const std::string header = big_endian(p.width) + big_endian(p.height) + std::string("\x08\0\0\0\0", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", stored(rows)) + chunk("IEND", "");
}

std::string base64(const std::string& data) {
  static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < data.size(); at += 3) {
    uint32_t bits = 0;
    const size_t count = std::min<size_t>(3, data.size() - at);
    for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? static_cast<unsigned char>(data[at + i]) : 0);
    for (size_t i = 0; i < 4; ++i) out += i <= count ? digits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

// Means of squares of `by` pixels; those at the edges may be smaller.
Picture shrunk(const Picture& p, int by) {
  Picture out{p.title, (p.width + by - 1) / by, (p.height + by - 1) / by, {}};
  for (int i = 0; i < p.height; i += by)
    for (int j = 0; j < p.width; j += by) {
      const int down = std::min(by, p.height - i), across = std::min(by, p.width - j);
      float sum = 0;
      for (int k = 0; k < down * across; ++k)
        sum += p.pixels[static_cast<size_t>(i + k / across) * p.width + j + k % across];
      out.pixels.push_back(sum / static_cast<float>(down * across));
    }
  return out;
}

}  // namespace

std::string side_by_side(const std::vector<Picture>& pictures) {
  constexpr int gap = 20, top = 40;
  const int width = gap + static_cast<int>(pictures.size()) * (kMost + gap), height = top + kMost + gap;
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' font-family='sans-serif' "
      "font-size='14' fill='#111827'>\n<rect width='100%' height='100%' fill='white'/>\n",
      width, height);
  int left = gap;
  for (const Picture& p : pictures) {
    const int by = (std::max(p.width, p.height) + kMost - 1) / kMost;
    out += fmt::format(
        "<text x='{}' y='{}' text-anchor='middle'>{}</text>\n<image x='{}' y='{}' width='{}' height='{}' "
        "style='image-rendering:pixelated' href='data:image/png;base64,{}'/>\n",
        left + kMost / 2, top - 14, p.title, left, top, kMost, kMost, base64(to_png(by > 1 ? shrunk(p, by) : p)));
    left += kMost + gap;
  }
  return out + "</svg>\n";
}

}  // namespace tessera::app
