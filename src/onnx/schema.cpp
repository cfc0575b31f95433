#include "onnx/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "io/file.h"
#include "onnx/graph.h"
#include "tessera/error.h"

namespace tessera::onnx {
namespace {

template <class... Args>
[[noreturn]] void fail(const Step& step, fmt::format_string<Args...> text, Args&&... args) {
  throw FileError(where(step) + fmt::format(text, std::forward<Args>(args)...));
}

/// The last that begins at the step's opset or before; null where ONNX has none.
const NodeSchema* find_schema(const Step& step, std::string_view domain) {
  const auto all = node_schemas();
  const auto key = [](const NodeSchema& s) { return std::tuple(s.domain, s.op, s.since); };
  const auto behind =
      std::upper_bound(all.begin(), all.end(), std::tuple(domain, std::string_view(step.op), step.opset),
                       [&](const auto& wanted, const NodeSchema& s) { return wanted < key(s); });
  if (behind == all.begin()) return nullptr;
  const NodeSchema& found = *std::prev(behind);
  return found.domain == domain && found.op == step.op ? &found : nullptr;
}

/// One of the words of a schema.
struct Allowed {
  std::string_view name;
  char type;
  bool required;
};
template <class Visit>
void each_allowed(std::string_view words, const Visit& visit) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    const size_t colon = word.find(':');
    visit(Allowed{word.substr(0, colon), word[colon + 1], word.ends_with('!')});
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
}

char letter_of(int64_t type) {
  constexpr std::string_view kLetters = "-fistgFISTGp-y-";  // by AttributeType
  return type >= 0 && static_cast<size_t>(type) < kLetters.size() ? kLetters[static_cast<size_t>(type)] : '-';
}

/// Those that a node names, without absent ones at its end.
size_t named(const std::vector<int>& slots) {
  size_t count = slots.size();
  while (count > 0 && slots[count - 1] < 0) --count;
  return count;
}

}  // namespace

void check_schema(const Step& step, std::string_view domain) {
  const NodeSchema* const schema = find_schema(step, domain);
  if (!schema) return;
  const int inputs = static_cast<int>(named(step.in)), outputs = static_cast<int>(step.out.size());
  if (inputs < schema->fewest_inputs)
    fail(step, "{} inputs, of at least {} that the operator takes", inputs, schema->fewest_inputs);
  if (schema->most_inputs >= 0 && inputs > schema->most_inputs)
    fail(step, "{} inputs, of {} that the operator takes", inputs, schema->most_inputs);
  if (schema->most_outputs >= 0 && outputs > schema->most_outputs)
    fail(step, "{} outputs, of {} that the operator gives", outputs, schema->most_outputs);

  const auto check = [&](std::string_view name, char type) {
    bool known = false;
    each_allowed(schema->attributes, [&](const Allowed& a) {
      if (a.name != name) return;
      known = true;
      if (type != a.type && type != '-') fail(step, "attribute {} is of another type", in_quotes(name));
    });
    if (!known) fail(step, "the operator has no attribute {} at opset {}", in_quotes(name), step.opset);
  };
  // Files of before IR 2 do not say the type.
  for (const AttributeProto& a : step.attributes) {
    if (a.type != 0 && letter_of(a.type) == '-') fail(step, "attribute {} is of another type", in_quotes(a.name));
    check(a.name, letter_of(a.type));
  }
  for (const Body& body : step.bodies) check(body.name, 'g');
  for (size_t i = 0; i < step.attributes.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (step.attributes[i].name == step.attributes[j].name)
        fail(step, "attribute {} is there twice", in_quotes(step.attributes[i].name));
  each_allowed(schema->attributes, [&](const Allowed& a) {
    const auto is_it = [&](const auto& given) { return given.name == a.name; };
    if (a.required && std::none_of(step.attributes.begin(), step.attributes.end(), is_it) &&
        std::none_of(step.bodies.begin(), step.bodies.end(), is_it))
      fail(step, "attribute {} is missing", in_quotes(a.name));
  });
}

}  // namespace tessera::onnx
