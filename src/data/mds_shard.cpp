#include "data/mds_shard.h"

#include <fmt/format.h>

#include <cstring>

namespace tessera::mds {
namespace {

constexpr size_t kWord = 4;

void append_number(std::string& out, uint64_t value) { out.append(reinterpret_cast<const char*>(&value), kWord); }

}  // namespace

Shard::Shard(std::string name, std::shared_ptr<const MappedFile> data, uint32_t samples)
    : name_(std::move(name)), data_(std::move(data)), samples_(samples) {
  const size_t header = kWord * (2 + size_t{samples_});
  if (bytes() < header)
    throw FileError(fmt::format("{}: {} bytes are too few for {} samples", name_, bytes(), samples_));
  if (number(0) != samples_)
    throw FileError(fmt::format("{}: has {} samples, the index says {}", name_, number(0), samples_));
  if (number(1) < header)
    throw FileError(fmt::format("{}: the first sample is at {}, in the header", name_, number(1)));
  if (number(1 + samples_) != bytes())
    throw FileError(fmt::format("{}: the last sample ends at {} of {} bytes", name_, number(1 + samples_), bytes()));
}

uint32_t Shard::number(size_t at) const {
  uint32_t out;
  std::memcpy(&out, data_->data + kWord * at, kWord);
  return out;
}

std::string_view Shard::config() const {
  const size_t header = kWord * (2 + size_t{samples_});
  if (number(1) > bytes()) throw FileError(name_ + ": the first sample is behind the end");
  return {data_->data + header, number(1) - header};
}

std::string_view Shard::sample(uint32_t i) const {
  const uint32_t begin = number(1 + i), end = number(2 + size_t{i});
  if (begin < number(1) || begin > end || end > bytes())
    fail(i, fmt::format("lies from {} to {} of {} bytes", begin, end, bytes()));
  return {data_->data + begin, end - begin};
}

std::string_view Shard::value(uint32_t i, const std::vector<Encoding>& encodings, size_t column) const {
  const std::string_view all = sample(i);
  size_t sizes = 0;
  for (const Encoding& e : encodings) sizes += e.length ? 0 : kWord;
  if (all.size() < sizes) fail(i, fmt::format("has {} bytes, too few for its sizes", all.size()));
  size_t begin = 0, length = 0, at = sizes;
  const char* next_size = all.data();
  for (size_t c = 0; c < encodings.size(); ++c) {
    uint32_t size = 0;
    if (encodings[c].length) {
      size = *encodings[c].length;
    } else {
      std::memcpy(&size, next_size, kWord);
      next_size += kWord;
    }
    if (c == column) begin = at, length = size;
    at += size;
  }
  if (at != all.size()) fail(i, fmt::format("has {} bytes, its values {}", all.size(), at));
  return all.substr(begin, length);
}

void Shard::fail(uint32_t sample, std::string_view rule) const {
  throw FileError(fmt::format("{}: sample {} {}", name_, sample, rule));
}

void Shard::verify(const Index& index) const {
  const auto config = nlohmann::json::parse(this->config(), nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names, encodings;
  for (const MdsColumn& column : index.columns) names.push_back(column.name), encodings.push_back(column.encoding);
  if (!config.is_object() || config.value("column_names", nlohmann::json()) != names ||
      config.value("column_encodings", nlohmann::json()) != encodings)
    throw FileError(name_ + ": its own description is damaged, or has other columns than the index");
  for (uint32_t i = 0; i < samples_; ++i) {
    if (number(1 + i) > number(2 + size_t{i})) sample(i);
    for (size_t c = 0; c < index.columns.size(); ++c) {
      const std::string_view bytes = value(i, index.encodings, c);
      try {
        check(index.encodings[c], bytes);
      } catch (const FileError& e) {
        fail(i, fmt::format("column {} {}", in_quotes(index.columns[c].name), e.what()));
      }
    }
  }
}

std::string shard_bytes(std::string_view config, const std::vector<uint64_t>& ends, std::string_view samples) {
  const size_t before = kWord * (2 + ends.size()) + config.size();
  if (before + samples.size() > UINT32_MAX)
    throw Error(
        fmt::format("mds: a shard of {} bytes, above the 4 GiB that its offsets reach", before + samples.size()));
  std::string out;
  out.reserve(before + samples.size());
  append_number(out, ends.size());
  append_number(out, before);
  for (const uint64_t end : ends) append_number(out, before + end);
  out += config;
  out += samples;
  return out;
}

}  // namespace tessera::mds
