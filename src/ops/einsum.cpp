// Sums of products over named dims, made of permutations, reshapes and products of matrices.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tessera/ops.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

// Letters are their codes; the dims of "..." are numbers behind these, aligned at the last one.
using Labels = SmallVector<int, 8>;
constexpr int kEllipsis = 256;

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}
int64_t position(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) - labels.begin();
}

struct Term {
  Tensor x;
  Labels labels;
};

[[noreturn]] void refuse(std::string_view equation, const std::string& why) {
  throw Error(fmt::format("einsum: {}: {}", equation, why));
}

// The labels of one operand, or of the result; "..." stands for `dots` dims.
Labels parse_labels(std::string_view equation, std::string_view text, int64_t dots) {
  Labels labels;
  bool seen = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      labels.push_back(c);
    } else if (text.substr(i, 3) == "..." && !seen) {
      for (int64_t d = dots; d-- > 0;) labels.push_back(kEllipsis + static_cast<int>(d));
      seen = true;
      i += 2;
    } else {
      refuse(equation, fmt::format("'{}' is neither letters nor one ...", text));
    }
  }
  return labels;
}

std::vector<std::string_view> split_terms(std::string_view text) {
  std::vector<std::string_view> terms;
  for (size_t comma; (comma = text.find(',')) != text.npos; text.remove_prefix(comma + 1))
    terms.push_back(text.substr(0, comma));
  terms.push_back(text);
  return terms;
}

// A letter twice: the diagonal.
void take_diagonals(Term& t) {
  for (size_t i = 0; i < t.labels.size();) {
    const int label = t.labels[i];
    const auto again = std::find(t.labels.begin() + static_cast<int64_t>(i) + 1, t.labels.end(), label);
    if (again == t.labels.end()) {
      ++i;
      continue;
    }
    t.x = diagonal(t.x, 0, static_cast<int64_t>(i), again - t.labels.begin());
    t.labels.erase(again);
    t.labels.erase(t.labels.begin() + static_cast<int64_t>(i));
    t.labels.push_back(label);
  }
}

void sum_over(Term& t, const Labels& kept) {
  Dims dims;
  Labels left;
  for (size_t i = 0; i < t.labels.size(); ++i)
    if (contains(kept, t.labels[i])) left.push_back(t.labels[i]);
    else dims.push_back(static_cast<int64_t>(i));
  if (!dims.empty()) t = {sum(t.x, dims), left};
}

// The dims in the order of the groups, each of which becomes one.
Tensor grouped(const Term& t, std::initializer_list<const Labels*> groups) {
  Dims order;
  Shape shape;
  for (const Labels* group : groups) {
    Dim size = 1;
    for (int label : *group) {
      const int64_t d = position(t.labels, label);
      order.push_back(d);
      size = size * t.x.shape()[d];
    }
    shape.push_back(size);
  }
  return reshape(permute(t.x, order), shape);
}

// One size for a label, 1 being any.
Dim common_size(std::string_view equation, const Term& a, const Term& b, int label) {
  const Dim in_a = a.x.shape()[position(a.labels, label)], in_b = b.x.shape()[position(b.labels, label)];
  if (!(in_a == in_b) && !(in_a == Dim(1)) && !(in_b == Dim(1)))
    refuse(equation, fmt::format("a dim is {} in one operand and {} in another", in_a.to_string(), in_b.to_string()));
  return in_a == Dim(1) ? in_b : in_a;
}

// Dims of one in the one operand that are more in the other.
void widen(Term& t, int label, Dim size) {
  Shape shape = t.x.shape();
  shape[position(t.labels, label)] = size;
  t.x = expand(t.x, shape);
}

// Without a sum: a product of elements, which integers have, too.
Tensor multiply(const Term& a, const Term& b, const Labels& labels) {
  const auto aligned = [&](const Term& t) {
    Dims order;
    Shape shape;
    for (int label : labels) {
      const bool has = contains(t.labels, label);
      if (has) order.push_back(position(t.labels, label));
      shape.push_back(has ? t.x.shape()[position(t.labels, label)] : Dim(1));
    }
    return reshape(permute(t.x, order), shape);
  };
  return aligned(a) * aligned(b);
}

Term product(std::string_view equation, Term a, Term b, const Labels& kept) {
  Labels batch, summed, of_a, of_b;
  for (int label : a.labels) {
    if (!contains(b.labels, label)) {
      of_a.push_back(label);
      continue;
    }
    const Dim size = common_size(equation, a, b, label);
    widen(a, label, size);
    widen(b, label, size);
    (contains(kept, label) ? batch : summed).push_back(label);
  }
  for (int label : b.labels)
    if (!contains(a.labels, label)) of_b.push_back(label);
  Labels labels = batch;
  labels.append(of_a.begin(), of_a.end());
  labels.append(of_b.begin(), of_b.end());
  if (summed.empty()) return {multiply(a, b, labels), labels};
  const DType dtype = promote(a.x.dtype(), b.x.dtype());
  // Vectors by vectors are no work for the vendor's products.
  const bool dots = of_a.empty() && of_b.empty() && a.x.device().is_card() && (dtype == Float32 || dtype == Float64);
  if (dots || !is_floating(dtype)) {
    Labels all = labels;
    all.append(summed.begin(), summed.end());
    Term whole = {multiply(a, b, all), all};
    sum_over(whole, labels);
    return whole;
  }
  Shape shape;
  for (int label : labels) {
    const Term& owner = contains(a.labels, label) ? a : b;
    shape.push_back(owner.x.shape()[position(owner.labels, label)]);
  }
  const Tensor y = matmul(grouped(a, {&batch, &of_a, &summed}), grouped(b, {&batch, &summed, &of_b}));
  return {reshape(y, shape), labels};
}

Labels implied_result(const std::vector<Term>& terms) {
  int64_t dots = 0;
  std::array<int, kEllipsis> times{};
  for (const Term& t : terms)
    for (int label : t.labels)
      if (label >= kEllipsis) dots = std::max<int64_t>(dots, label - kEllipsis + 1);
      else ++times[static_cast<size_t>(label)];
  Labels labels;
  for (int64_t d = dots; d-- > 0;) labels.push_back(kEllipsis + static_cast<int>(d));
  for (int letter = 0; letter < kEllipsis; ++letter)
    if (times[static_cast<size_t>(letter)] == 1) labels.push_back(letter);
  return labels;
}

std::vector<Term> parse_terms(std::string_view equation, std::string_view inputs, const Tensors& operands) {
  const auto texts = split_terms(inputs);
  if (texts.size() != operands.size())
    refuse(equation, fmt::format("{} operands, not {}", operands.size(), texts.size()));
  std::vector<Term> terms;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t letters = static_cast<int64_t>(parse_labels(equation, texts[i], 0).size());
    const bool has_dots = texts[i].find("...") != texts[i].npos;
    const int64_t dots = operands[i].dim() - letters;
    if (dots < 0 || (dots > 0 && !has_dots))
      refuse(equation, fmt::format("'{}' does not name the dims of {}", texts[i], to_string(operands[i].shape())));
    terms.push_back({operands[i], parse_labels(equation, texts[i], dots)});
  }
  return terms;
}

Labels parse_result(std::string_view equation, std::string_view text, const std::vector<Term>& terms) {
  int dots = 0;
  for (const Term& t : terms)
    for (int label : t.labels) dots = std::max(dots, label - kEllipsis + 1);
  const Labels labels = parse_labels(equation, text, dots);
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool known =
        std::any_of(terms.begin(), terms.end(), [&](const Term& t) { return contains(t.labels, labels[i]); });
    const Labels before(labels.begin(), labels.begin() + static_cast<int64_t>(i));
    if (!known || contains(before, labels[i]))
      refuse(equation, fmt::format("the result names '{}' {}", static_cast<char>(labels[i]),
                                   known ? "twice" : "which no operand has"));
  }
  return labels;
}

}  // namespace

Tensor einsum(std::string_view equation, const Tensors& operands) {
  const size_t arrow = equation.find("->");
  std::vector<Term> terms = parse_terms(equation, equation.substr(0, arrow), operands);
  const Labels result =
      arrow == equation.npos ? implied_result(terms) : parse_result(equation, equation.substr(arrow + 2), terms);
  for (Term& t : terms) take_diagonals(t);
  // What each operand but the first is multiplied into keeps what the result and the operands behind it name.
  Term so_far = terms[0];
  for (size_t i = 1; i <= terms.size(); ++i) {
    Labels later = result;
    for (size_t j = i + 1; j < terms.size(); ++j) later.append(terms[j].labels.begin(), terms[j].labels.end());
    Labels next = later;
    if (i < terms.size()) next.append(terms[i].labels.begin(), terms[i].labels.end());
    sum_over(so_far, next);
    if (i == terms.size()) break;
    Labels other = later;
    other.append(so_far.labels.begin(), so_far.labels.end());
    sum_over(terms[i], other);
    so_far = product(equation, so_far, terms[i], later);
  }
  Dims order;
  for (int label : result) order.push_back(position(so_far.labels, label));
  return permute(so_far.x, order);
}

Tensor tensordot(const Tensor& a, const Tensor& b, const Dims& dims_a, const Dims& dims_b) {
  bool fits = dims_a.size() == dims_b.size();
  Labels of_a, of_b, result;
  for (int64_t d = 0; d < a.dim(); ++d) of_a.push_back(static_cast<int>(d));
  for (int64_t d = 0; d < b.dim(); ++d) of_b.push_back(static_cast<int>(a.dim() + d));
  for (size_t i = 0; fits && i < dims_a.size(); ++i) {
    const int64_t da = normalize_dim("tensordot", dims_a[i], a.shape()),
                  db = normalize_dim("tensordot", dims_b[i], b.shape());
    fits = a.shape()[da] == b.shape()[db] && of_b[static_cast<size_t>(db)] >= a.dim();
    of_b[static_cast<size_t>(db)] = static_cast<int>(da);
  }
  if (!fits)
    throw Error(fmt::format("tensordot: dims [{}] of {} do not match dims [{}] of {}", fmt::join(dims_a, ", "),
                            to_string(a.shape()), fmt::join(dims_b, ", "), to_string(b.shape())));
  for (int label : of_a)
    if (!contains(of_b, label)) result.push_back(label);
  for (int label : of_b)
    if (label >= a.dim()) result.push_back(label);
  return product("tensordot", {a, of_a}, {b, of_b}, result).x;
}

}  // namespace tessera
