#include "tessera/dtype.h"

#include <bit>
#include <cstdint>

#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {

f16::f16(float value) {
  uint32_t u = std::bit_cast<uint32_t>(value), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) {
    bits = sign | 0x7e00;  // NaN
  } else if (a >= 0x477ff000) {
    bits = sign | 0x7c00;  // rounds past the largest half
  } else if (a >= 0x38800000) {
    bits = sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
  } else {  // subnormal: adding 0.5 aligns the mantissa and rounds to nearest even
    bits = sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000);
  }
}

f16::operator float() const {
  uint32_t sign = uint32_t(bits & 0x8000) << 16, a = bits & 0x7fff;
  if (a >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (a & 0x3ff) << 13);
  if (a >= 0x400) return std::bit_cast<float>(sign | ((a << 13) + 0x38000000));
  float subnormal = static_cast<float>(a) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

bf16::bf16(float value) {
  uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffff) > 0x7f800000) bits = u >> 16 | 0x40;  // keep NaN a NaN
  else bits = (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

bf16::operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }

DType parse_dtype(std::string_view text) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  if (text == "fp16") return Float16;
  if (text == "fp32") return Float32;
  std::string known;
  for (int i = 0; i < kDTypeCount; ++i) known += ' ' + std::string(name(static_cast<DType>(i)));
  throw Error("unknown dtype '" + std::string(text) + "': one of" + known);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  DType lo = std::min(a, b), hi = std::max(a, b);
  if (lo == DType::Float16 && hi == DType::BFloat16) return DType::Float32;
  if (is_floating(hi) || lo == DType::Bool || is_unsigned(lo) == is_unsigned(hi)) return hi;
  if (lo == DType::UInt8 && hi == DType::Int8) return DType::Int32;
  if (!is_unsigned(hi) && size_of(hi) > size_of(lo)) return hi;
  switch (is_unsigned(hi) ? hi : lo) {
    case DType::UInt16:
      return DType::Int32;
    case DType::UInt32:
      return DType::Int64;
    default:
      return DType::Float64;
  }
}

namespace {
Device gpu_of(DeviceType type, int index) {
  if (index < 0 || index > INT8_MAX) throw Error("bad device index " + std::to_string(index) + ": it is 0 to 127");
  return {type, static_cast<int8_t>(index)};
}
}  // namespace
Device cuda(int index) { return gpu_of(DeviceType::CUDA, index); }
Device hip(int index) { return gpu_of(DeviceType::HIP, index); }

namespace {

// Cards that can be asked for without being there; the first has index -1.
struct Architecture {
  DeviceType type;
  std::string_view name;
};
constexpr Architecture kArchitectures[] = {
    {DeviceType::CUDA, "sm80"}, {DeviceType::CUDA, "sm90"}, {DeviceType::HIP, "gfx90a"}};

}  // namespace

Device parse_device(std::string_view text) {
  if (text.starts_with("meta(") && text.ends_with(")")) {
    const Device device = parse_device(text.substr(5, text.size() - 6));
    if (!device.meta) return meta(device);
  }
  auto colon = text.find(':');
  std::string_view kind = text.substr(0, colon);
  Device device;
  if (kind == "cpu") device.type = DeviceType::CPU;
  else if (kind == "cuda") device.type = DeviceType::CUDA;
  else if (kind == "hip") device.type = DeviceType::HIP;
  else throw Error("unknown device '" + std::string(text) + "': cpu, cuda:N or hip:N");
  if (colon == text.npos) return device;
  for (size_t i = 0; i < std::size(kArchitectures); ++i)
    if (kArchitectures[i].type == device.type && kArchitectures[i].name == text.substr(colon + 1))
      return meta({device.type, static_cast<int8_t>(-1 - static_cast<int>(i))});
  std::string digits(text.substr(colon + 1));
  if (digits.empty() || digits.size() > 2 || digits.find_first_not_of("0123456789") != digits.npos) {
    std::string known;
    for (const auto& architecture : kArchitectures)
      if (architecture.type == device.type) known += ", " + std::string(kind) + ":" + std::string(architecture.name);
    throw Error("unknown device '" + std::string(text) + "': " + std::string(kind) + ":N" + known);
  }
  device.index = static_cast<int8_t>(std::stoi(digits));
  if (device.type == DeviceType::CPU && device.index != 0)
    throw Error("there is one cpu device, not '" + std::string(text) + "'");
  return device;
}

std::string to_string(Device device) {
  const std::string kind = device.type == DeviceType::CPU ? "cpu" : device.type == DeviceType::CUDA ? "cuda" : "hip";
  if (device.index < 0) return kind + ":" + std::string(kArchitectures[-1 - device.index].name);
  const std::string place = device.is_gpu() ? kind + ":" + std::to_string(device.index) : kind;
  return device.meta ? "meta(" + place + ")" : place;
}

}  // namespace tessera
