#include "tessera/shape.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <vector>

#include "tessera/error.h"

namespace tessera {

// A symbolic dim is a polynomial over atoms; an atom is a named symbol or a floor division that does not come out even.
struct DimTable {
  using Monomial = std::map<int, int>;             // atom -> exponent
  using Polynomial = std::map<Monomial, int64_t>;  // without zero coefficients
  struct Atom {
    std::string name;
    Dim numerator, denominator;  // of a floor division
  };

  std::mutex mutex;
  std::vector<Polynomial> polynomials;
  std::map<Polynomial, int64_t> index;
  std::vector<Atom> atoms;
  std::map<std::string, int> atom_index;

  static DimTable& get() {
    static auto* table = new DimTable;  // never destroyed: dims may outlive static destructors
    return *table;
  }

  Polynomial polynomial(Dim d) const {
    if (d.is_symbolic()) return polynomials[Dim::kSymbolic - 1 - d.value_];
    if (d.value_ == 0) return {};
    return {{Monomial{}, d.value_}};
  }
  Dim intern(const Polynomial& p) {
    if (p.empty()) return 0;
    if (p.size() == 1 && p.begin()->first.empty()) return p.begin()->second;
    auto [it, fresh] = index.emplace(p, static_cast<int64_t>(polynomials.size()));
    if (fresh) polynomials.push_back(p);
    Dim handle;
    handle.value_ = Dim::kSymbolic - 1 - it->second;
    return handle;
  }
  Dim atom(Atom a) {
    auto [it, fresh] = atom_index.emplace(a.name, static_cast<int>(atoms.size()));
    if (fresh) atoms.push_back(std::move(a));
    return intern({{Monomial{{it->second, 1}}, 1}});
  }
  [[noreturn]] static void throw_overflow() { throw Error("arithmetic on dims overflows 64 bits"); }
  static void add_term(Polynomial& p, const Monomial& m, int64_t coefficient) {
    int64_t& sum = p[m];
    if (__builtin_add_overflow(sum, coefficient, &sum)) throw_overflow();
    if (sum == 0) p.erase(m);
  }
  static Polynomial multiply(const Polynomial& a, const Polynomial& b) {
    Polynomial out;
    for (auto& [ma, ca] : a)
      for (auto& [mb, cb] : b) {
        Monomial m = ma;
        for (auto& [v, e] : mb) m[v] += e;
        int64_t product;
        if (__builtin_mul_overflow(ca, cb, &product)) throw_overflow();
        add_term(out, m, product);
      }
    return out;
  }
  // a / b where b is one term that divides every term of a.
  static bool divide_exactly(const Polynomial& a, const Polynomial& b, Polynomial& out) {
    if (b.size() != 1) return false;
    auto& [mb, cb] = *b.begin();
    for (auto& [ma, ca] : a) {
      if (ca % cb != 0) return false;
      Monomial m = ma;
      for (auto& [v, e] : mb) {
        auto it = m.find(v);
        if (it == m.end() || it->second < e) return false;
        if ((it->second -= e) == 0) m.erase(it);
      }
      out[m] = ca / cb;
    }
    return true;
  }
  static std::string atom_text(const Atom& a);  // floor divisions are printed as they are
  std::string print(const Polynomial& p) const {
    std::string text;
    for (auto& [m, c] : p) {
      std::string term;
      for (auto& [v, e] : m)
        for (int i = 0; i < e; ++i) term += (term.empty() ? "" : "*") + atom_text(atoms[v]);
      if (term.empty()) term = std::to_string(c);
      else if (c != 1) term = std::to_string(c) + "*" + term;
      text += (text.empty() ? "" : " + ") + term;
    }
    return text;
  }
};

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// As it stands in expressions.
std::string symbol_text(std::string_view name) {
  const bool plain = is_letter(name[0]) && name != "floor" &&
                     std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); });
  return plain ? std::string(name) : "'" + std::string(name) + "'";
}

// Recursive descent over what to_string() prints.
class DimReader {
 public:
  explicit DimReader(std::string_view text) : text_(text), rest_(text) {}
  Dim whole() {
    const Dim value = sum();
    skip_spaces();
    if (!rest_.empty()) fail();
    return value;
  }

 private:
  Dim sum() {
    Dim value = product();
    while (true) {
      if (take('+')) value = value + product();
      else if (take('-')) value = value - product();
      else return value;
    }
  }
  Dim product() {
    Dim value = factor();
    while (take('*')) value = value * factor();
    return value;
  }
  Dim factor() {
    if (++depth_ > 256) fail();
    const Dim value = any_factor();
    --depth_;
    return value;
  }
  Dim any_factor() {
    if (take('(')) return closed(sum());
    if (take('\'')) return quoted();
    if (take('-')) return Dim(0) - factor();
    skip_spaces();
    if (!rest_.empty() && is_digit(rest_[0])) return number();
    const std::string_view name = word();
    if (name == "floor") return floor();
    return Dim::symbol(name);
  }
  // ((a)/(b))
  Dim floor() {
    expect('(');
    const Dim numerator = factor();
    expect('/');
    const Dim denominator = factor();
    expect(')');
    return numerator / denominator;
  }
  Dim number() {
    int64_t value = 0;
    const auto [end, fault] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (fault != std::errc()) fail();
    rest_.remove_prefix(end - rest_.data());
    return value;
  }
  Dim quoted() {
    const auto end = rest_.find('\'');
    if (end == rest_.npos || end == 0) fail();
    const Dim value = Dim::symbol(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return value;
  }
  Dim closed(Dim value) {
    expect(')');
    return value;
  }
  std::string_view word() {
    size_t length = 0;
    while (length < rest_.size() && (is_letter(rest_[length]) || (length && is_digit(rest_[length])))) ++length;
    if (length == 0) fail();
    const std::string_view name = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return name;
  }
  void skip_spaces() {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
  }
  bool take(char c) {
    skip_spaces();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail();
  }
  [[noreturn]] void fail() const { throw Error("'" + std::string(text_.substr(0, 80)) + "' is no dim"); }

  std::string_view text_, rest_;
  int depth_ = 0;
};

}  // namespace

std::string DimTable::atom_text(const Atom& a) { return a.denominator == Dim(0) ? symbol_text(a.name) : a.name; }

Dim Dim::parse(std::string_view text) { return DimReader(text).whole(); }

Dim Dim::symbol(std::string_view name) {
  if (name.empty() || name.find('\'') != name.npos)
    throw Error("'" + std::string(name) + "' cannot be the name of a dim");
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.atom({std::string(name), 0, 0});
}

std::string Dim::to_string() const {
  if (!is_symbolic()) return std::to_string(value_);
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.print(table.polynomial(*this));
}

int64_t Dim::throw_symbolic() const { throw Error("dim " + to_string() + " is symbolic: it has no value yet"); }

void Dim::throw_out_of_range(int64_t value) { throw Error("dim " + std::to_string(value) + " is out of range"); }

Dim Dim::add(Dim a, Dim b) {
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  auto sum = table.polynomial(a);
  for (auto& [m, c] : table.polynomial(b)) DimTable::add_term(sum, m, c);
  return table.intern(sum);
}

Dim Dim::multiply(Dim a, Dim b) {
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.intern(DimTable::multiply(table.polynomial(a), table.polynomial(b)));
}

Dim Dim::divide(Dim a, Dim b) {
  if (b == Dim(0)) throw Error("division of dim " + a.to_string() + " by zero");
  if (both(a, b)) {
    int64_t q = a.value_ / b.value_;
    return q - (a.value_ % b.value_ != 0 && (a.value_ < 0) != (b.value_ < 0));
  }
  if (a == b) return 1;
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  DimTable::Polynomial quotient;
  auto pa = table.polynomial(a), pb = table.polynomial(b);
  if (DimTable::divide_exactly(pa, pb, quotient)) return table.intern(quotient);
  return table.atom({"floor((" + table.print(pa) + ")/(" + table.print(pb) + "))", a, b});
}

Dim Dim::substitute(std::string_view name, int64_t value) const {
  if (!is_symbolic()) return *this;
  auto& table = DimTable::get();
  DimTable::Polynomial p;
  std::vector<DimTable::Atom> atoms;
  {
    std::lock_guard lock(table.mutex);
    p = table.polynomial(*this);
    atoms = table.atoms;
  }
  Dim sum = 0;
  for (auto& [m, c] : p) {
    Dim term = c;
    for (auto& [v, e] : m) {
      auto& a = atoms[v];
      Dim factor = a.denominator == Dim(0)
                       ? (a.name == name ? Dim(value) : Dim::symbol(a.name))
                       : a.numerator.substitute(name, value) / a.denominator.substitute(name, value);
      for (int i = 0; i < e; ++i) term = term * factor;
    }
    sum = sum + term;
  }
  return sum;
}

bool Shape::is_symbolic() const {
  return std::any_of(begin(), end(), [](Dim d) { return d.is_symbolic(); });
}

Dim Shape::numel() const {
  Dim n = 1;
  for (Dim d : *this) {
    int64_t product;
    if (!n.is_symbolic() && !d.is_symbolic()) {
      if (__builtin_mul_overflow(n.value(), d.value(), &product))
        throw Error("shape " + tessera::to_string(*this) + " has more than 2^63 elements");
      n = product;
    } else {
      n = n * d;
    }
  }
  return n;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + shape[i].to_string();
  return text + "]";
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides(shape.size());
  int64_t step = 1;
  for (int64_t i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    if (__builtin_mul_overflow(step, std::max<int64_t>(shape[i].value(), 1), &step))
      throw Error("shape " + to_string(shape) + " has strides beyond 2^63");
  }
  return strides;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    Dim x = longer[shift + i], y = shorter[i];
    if (x == y || y == Dim(1)) continue;
    if (x != Dim(1))
      throw Error(std::string(op) + ": shapes do not broadcast: " + to_string(a) + " and " + to_string(b));
    out[shift + i] = y;
  }
  return out;
}

int64_t normalize_dim(std::string_view op, int64_t dim, const Shape& shape) {
  int64_t rank = shape.rank();
  if (dim < -rank || dim >= rank)
    throw Error(std::string(op) + ": dim " + std::to_string(dim) + " is out of range for " + to_string(shape));
  return dim < 0 ? dim + rank : dim;
}

}  // namespace tessera
