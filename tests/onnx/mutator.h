// Changes of a model, one field of one message at a time, along the table of fields. What it writes is well-formed, but
// hardly ever a valid model.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "onnx/handler.h"
#include "onnx/proto.h"

namespace tessera::onnx {

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  /// One to four changes. `model` keeps views of this object.
  void mutate(ModelProto& model) {
    known_.clear();
    collect(model);
    for (int64_t changes = 1 + below(below(2) ? 2 : 4); changes > 0; --changes) {
      int64_t places = 0;
      walk(model, [&](auto&) { ++places; });
      int64_t chosen = below(places);
      walk(model, [&](auto& field) {
        if (chosen-- == 0) change(field);
      });
    }
  }

 private:
  template <class T>
  static constexpr bool is_message = requires {
    Fields<T>::all;
  };

  int64_t below(int64_t n) { return n > 0 ? static_cast<int64_t>(random_() % static_cast<uint64_t>(n)) : 0; }

  template <class Message, class Visit>
  static void walk(Message& message, const Visit& visit) {
    std::apply([&](auto... fields) { (walk_field(message.*fields.member, visit), ...); }, Fields<Message>::all);
  }
  template <class T, class Visit>
  static void walk_field(T& field, const Visit& visit) {
    visit(field);
    if constexpr (is_message<T>) walk(field, visit);
  }
  template <class T, class Visit>
  static void walk_field(Optional<T>& field, const Visit& visit) {
    visit(field);
    if (field) walk_field(field.make(), visit);
  }
  template <class T, class Visit>
  static void walk_field(std::vector<T>& field, const Visit& visit) {
    visit(field);
    if constexpr (!std::is_arithmetic_v<T>)
      for (T& one : field) walk_field(one, visit);
  }

  /// Texts of the model, which name its values, operators and attributes.
  void collect(ModelProto& model) {
    walk(model, [&](auto& field) {
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, Bytes>)
        if (field.size() < 64) known_.push_back(field);
    });
  }

  void change(int64_t& value) { value = integer(value); }
  void change(float& value) { value = static_cast<float>(real(value)); }
  void change(double& value) { value = real(value); }
  void change(Bytes& value) {
    const int64_t how = below(8);
    if (how < 4 && !known_.empty()) value = known_[static_cast<size_t>(below(static_cast<int64_t>(known_.size())))];
    else if (how == 4)
      value = all_operators()[static_cast<size_t>(below(static_cast<int64_t>(all_operators().size())))];
    else if (how == 5) value = value.substr(0, static_cast<size_t>(below(static_cast<int64_t>(value.size()) + 1)));
    else value = changed_bytes(value);
  }
  template <class T>
  requires is_message<T>
  void change(T& message) {
    if (below(4) == 0) message = T{};
  }
  template <class T>
  void change(Optional<T>& field) {
    if (field && below(2)) field = Optional<T>();
    else if (!field) change(field.make());
  }
  template <class T>
  void change(std::vector<T>& all) {
    const auto some = [&] { return static_cast<int64_t>(below(static_cast<int64_t>(all.size()))); };
    const int64_t how = below(8);
    if (all.empty() || how == 0) {
      all.insert(all.begin() + below(static_cast<int64_t>(all.size()) + 1), T{});
    } else if (how == 1) {
      all.erase(all.begin() + some());
    } else if (how == 2) {
      const T copy = all[static_cast<size_t>(some())];
      all.insert(all.begin() + some(), copy);
    } else if (how == 3) {
      std::swap(all[static_cast<size_t>(some())], all[static_cast<size_t>(some())]);
    } else if (how == 4 && below(4) == 0) {
      all.clear();
    } else {
      change(all[static_cast<size_t>(some())]);
    }
  }

  int64_t integer(int64_t before) {
    constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
    constexpr std::array<int64_t, 20> kTelling = {0,
                                                  1,
                                                  -1,
                                                  2,
                                                  -2,
                                                  3,
                                                  7,
                                                  8,
                                                  16,
                                                  17,
                                                  64,
                                                  255,
                                                  65536,
                                                  int64_t{1} << 31,
                                                  (int64_t{1} << 31) - 1,
                                                  int64_t{1} << 40,
                                                  -4,
                                                  5,
                                                  kMax,
                                                  kMin};
    switch (below(4)) {
      case 0:
        return static_cast<int64_t>(static_cast<uint64_t>(before) + (below(2) ? 1u : ~uint64_t{0}));
      case 1:
        return below(32);  // types of elements and of attributes are small
      default:
        return kTelling[static_cast<size_t>(below(kTelling.size()))];
    }
  }
  double real(double before) {
    const double telling[] = {0, 1, -1, NAN, INFINITY, -INFINITY, 1e30, -1e30, 1e-30, before * 2, before + 1, 0.5};
    return telling[static_cast<size_t>(below(std::size(telling)))];
  }
  Bytes changed_bytes(Bytes value) {
    std::string& bytes = texts_.emplace_back(value);
    for (int64_t i = 1 + below(4); i > 0; --i) {
      if (bytes.empty() || below(8) == 0) bytes.push_back(static_cast<char>(below(256)));
      else bytes[static_cast<size_t>(below(static_cast<int64_t>(bytes.size())))] = static_cast<char>(below(256));
    }
    return bytes;
  }

  std::mt19937_64 random_;
  std::vector<Bytes> known_;
  std::deque<std::string> texts_;
};

}  // namespace tessera::onnx
