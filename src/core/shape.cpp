#include "tessera/shape.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "core/dim_terms.h"
#include "tessera/error.h"

namespace tessera {

// From low to high; INT64_MIN and INT64_MAX are infinite.
struct DimInterval {
  int64_t low = 0, high = Dim::kUnbounded;
};

static int64_t clamped(__int128 value) {
  return static_cast<int64_t>(std::clamp<__int128>(value, INT64_MIN, Dim::kUnbounded));
}
static bool is_infinite(int64_t end) { return end == INT64_MIN || end == Dim::kUnbounded; }
static int64_t sum_of(int64_t a, int64_t b) {
  return is_infinite(a) ? a : is_infinite(b) ? b : clamped(__int128{a} + b);
}
static int64_t product_of(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  if (is_infinite(a) || is_infinite(b)) return (a < 0) == (b < 0) ? Dim::kUnbounded : INT64_MIN;
  return clamped(__int128{a} * b);
}
static int64_t quotient_of(int64_t a, int64_t b) {  // rounded down; b > 0
  if (is_infinite(a)) return a;
  if (is_infinite(b)) return a < 0 ? -1 : 0;
  return a / b - (a % b < 0);
}

static DimInterval operator+(DimInterval a, DimInterval b) { return {sum_of(a.low, b.low), sum_of(a.high, b.high)}; }
static DimInterval operator*(DimInterval a, DimInterval b) {
  const int64_t ends[] = {product_of(a.low, b.low), product_of(a.low, b.high), product_of(a.high, b.low),
                          product_of(a.high, b.high)};
  return {*std::min_element(ends, ends + 4), *std::max_element(ends, ends + 4)};
}
static DimInterval operator/(DimInterval a, DimInterval b) {
  if (b.high < 0) return DimInterval{-1, -1} * a / (DimInterval{-1, -1} * b);
  if (b.low <= 0) return {INT64_MIN, Dim::kUnbounded};
  return {std::min(quotient_of(a.low, b.low), quotient_of(a.low, b.high)),
          std::max(quotient_of(a.high, b.low), quotient_of(a.high, b.high))};
}

// A symbolic dim is a polynomial over atoms; an atom is a named symbol or a floor division that does not come out even.
struct DimTable {
  using Monomial = std::map<int, int>;             // atom -> exponent
  using Polynomial = std::map<Monomial, int64_t>;  // without zero coefficients
  struct Atom {
    std::string name;
    Dim numerator, denominator;  // of a floor division
    DimInterval bounds = {};     // of a symbol
    std::string op = {};         // whose count it is
    bool is_symbol() const { return denominator == Dim(0); }
    // Equal for those that are one atom.
    std::string key() const {
      return is_symbol() ? fmt::format("{}'{}'{}'{}", name, bounds.low, bounds.high, op)
                         : fmt::format("'{}/{}", numerator.value_, denominator.value_);
    }
  };

  std::mutex mutex;
  std::vector<Polynomial> polynomials;
  std::map<Polynomial, int64_t> index;
  std::vector<Atom> atoms;
  std::map<std::string, int> atom_index;
  uint64_t asked = 0;  // for a handle, by any thread
  static thread_local uint64_t asked_here;

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
    ++asked, ++asked_here;
    auto it = index.find(p);
    if (it == index.end()) {
      symbols(p);  // of one name can be only one
      it = index.emplace(p, static_cast<int64_t>(polynomials.size())).first;
      polynomials.push_back(p);
    }
    Dim handle;
    handle.value_ = Dim::kSymbolic - 1 - it->second;
    return handle;
  }
  Dim atom(Atom a) {
    auto [it, fresh] = atom_index.emplace(a.key(), static_cast<int>(atoms.size()));
    if (fresh) atoms.push_back(std::move(a));
    return intern({{Monomial{{it->second, 1}}, 1}});
  }
  // The atom that is all of the polynomial; null where there is more.
  const Atom* only_atom(Dim d) const {
    const Polynomial p = polynomial(d);
    if (p.size() != 1 || p.begin()->second != 1) return nullptr;
    const Monomial& m = p.begin()->first;
    return m.size() == 1 && m.begin()->second == 1 ? &atoms[static_cast<size_t>(m.begin()->first)] : nullptr;
  }
  // Of the polynomial, by name.
  std::map<std::string, int> symbols(const Polynomial& p) const {
    std::map<std::string, int> found;
    collect(p, found);
    return found;
  }
  void collect(const Polynomial& p, std::map<std::string, int>& found) const {
    for (auto& [m, c] : p)
      for (auto& [v, e] : m) {
        const Atom& a = atoms[static_cast<size_t>(v)];
        if (!a.is_symbol()) {
          collect(polynomial(a.numerator), found);
          collect(polynomial(a.denominator), found);
        } else if (auto [it, fresh] = found.emplace(a.name, v); it->second != v) {
          throw_two(atoms[static_cast<size_t>(it->second)], a);
        }
      }
  }
  // "[0, inf]", "[0, 12] of nonzero"
  static std::string range_text(const Atom& a) {
    const auto end = [](int64_t n) { return n == Dim::kUnbounded ? "inf" : std::to_string(n); };
    return fmt::format("[{}, {}]{}", end(a.bounds.low), end(a.bounds.high), a.op.empty() ? "" : " of " + a.op);
  }
  [[noreturn]] static void throw_two(const Atom& a, const Atom& b) {
    const auto rank = [](const Atom& x) { return std::tie(x.bounds.low, x.bounds.high, x.op); };
    if (rank(b) < rank(a)) throw_two(b, a);
    throw Error(fmt::format("two dims are named {}: one in {}, one in {}", a.name, range_text(a), range_text(b)));
  }
  DimInterval bounds(const Polynomial& p) const {
    DimInterval sum = {0, 0};
    for (auto& [m, c] : p) {
      DimInterval term = {c, c};
      for (auto& [v, e] : m) {
        const Atom& a = atoms[static_cast<size_t>(v)];
        const DimInterval factor =
            a.is_symbol() ? a.bounds : bounds(polynomial(a.numerator)) / bounds(polynomial(a.denominator));
        for (int i = 0; i < e; ++i) term = term * factor;
      }
      sum = sum + term;
    }
    return sum;
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
  // floor(a / n), n > 1: what divides evenly stands before the division, and factors of all terms and n are left out.
  // Bounds stay as tight as those of a / n.
  Dim divide_by(const Polynomial& a, int64_t n) {
    Polynomial whole, rest, reduced;
    int64_t common = n;
    for (auto& [m, c] : a) {
      const int64_t quotient = m.empty() || c % n == 0 ? quotient_of(c, n) : 0, left = c - quotient * n;
      if (quotient != 0) whole[m] = quotient;
      if (left != 0) rest[m] = left;
      if (!m.empty()) common = std::gcd(common, left);
    }
    for (auto& [m, c] : rest)
      if (c / common != 0) reduced[m] = c / common;
    if (common == n) return intern(whole);
    const Dim numerator = intern(reduced), divisor = n / common;
    const Dim division =
        atom({"floor((" + print(reduced) + ")/(" + std::to_string(n / common) + "))", numerator, divisor});
    for (auto& [m, c] : polynomial(division)) add_term(whole, m, c);
    return intern(whole);
  }
  void forget_after(size_t expressions, size_t atoms_before) {
    for (; polynomials.size() > expressions; polynomials.pop_back()) index.erase(polynomials.back());
    for (; atoms.size() > atoms_before; atoms.pop_back()) atom_index.erase(atoms.back().key());
  }
  Dim symbol(const Atom& a);                    // locks
  std::vector<DimTerm> terms(Dim d);            // locks
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
  if (name.empty()) return "count";
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
    return named(name);
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
    const Dim value = named(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return value;
  }
  static Dim named(std::string_view name) {
    const Dim* const known = DimNames::find(name);
    return known ? *known : Dim::symbol(name);
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

thread_local uint64_t DimTable::asked_here = 0;
std::string DimTable::atom_text(const Atom& a) { return a.is_symbol() ? symbol_text(a.name) : a.name; }

Dim Dim::parse(std::string_view text) { return DimReader(text).whole(); }

namespace {
void check_symbol(std::string_view name, int64_t low, int64_t high) {
  if (name.empty() || name.find('\'') != name.npos)
    throw Error("'" + std::string(name) + "' cannot be the name of a dim");
  if (low > high) throw Error(fmt::format("dim {}: no number is in [{}, {}]", name, low, high));
}
thread_local const DimNames* names_in_use = nullptr;
}  // namespace

Dim Dim::symbol(std::string_view name, int64_t low, int64_t high) {
  check_symbol(name, low, high);
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.atom({std::string(name), 0, 0, {low, high}});
}

Dim Dim::count(std::string_view name, int64_t high, std::string_view op) {
  check_symbol(name.empty() ? "count" : name, 0, high);
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.atom({std::string(name), 0, 0, {0, high}, std::string(op)});
}

DimNames::DimNames(const std::vector<Dim>& symbols) : before_(names_in_use) {
  for (const Dim d : symbols) symbols_.emplace_back(d.name(), d);
  names_in_use = this;
}
DimNames::~DimNames() { names_in_use = before_; }
const Dim* DimNames::find(std::string_view name) {
  if (!names_in_use) return nullptr;
  for (const auto& [known, symbol] : names_in_use->symbols_)
    if (known == name) return &symbol;
  return nullptr;
}

std::string bounds_text(Dim symbol) {
  if (!symbol.is_symbolic()) return {};
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  const DimTable::Atom* const only = table.only_atom(symbol);
  if (!only || !only->is_symbol()) return {};
  const bool bounded = only->bounds.low != 0 || only->bounds.high != Dim::kUnbounded || !only->op.empty();
  return bounded ? symbol_text(only->name) + " in " + DimTable::range_text(*only) : "";
}

TemporaryDims::TemporaryDims() {
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  expressions_ = table.polynomials.size();
  atoms_ = table.atoms.size();
  asked_ = table.asked;
  asked_here_ = DimTable::asked_here;
}
TemporaryDims::~TemporaryDims() {
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  const bool by_others = table.asked - asked_ != DimTable::asked_here - asked_here_;
  if (!keeps_ && !by_others) table.forget_after(expressions_, atoms_);
}

Dim parse_bounds(std::string_view text) {
  const auto refuse = [&] {
    throw Error("'" + std::string(text.substr(0, 80)) + "' bounds no dim: name in [low, high] does");
  };
  const bool quoted = text.starts_with('\'');
  const auto name_end = quoted ? text.find('\'', 1) : text.find(' ');
  const auto open = text.find(" in [", std::min(name_end, text.size())),
             comma = text.find(", ", std::min(open, text.size())), close = text.find(']', std::min(open, text.size()));
  if (name_end == text.npos || open != name_end + quoted || comma == text.npos || close == text.npos || comma > close)
    refuse();
  const auto number = [&](std::string_view digits) {
    int64_t value = 0;
    if (digits == "inf") return Dim::kUnbounded;
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (fault != std::errc() || end != digits.data() + digits.size()) refuse();
    return value;
  };
  const std::string_view name = quoted ? text.substr(1, name_end - 1) : text.substr(0, name_end);
  const int64_t low = number(text.substr(open + 5, comma - open - 5)),
                high = number(text.substr(comma + 2, close - comma - 2));
  const std::string_view rest = text.substr(close + 1);
  if (symbol_text(name) != text.substr(0, name_end + quoted)) refuse();
  if (rest.empty()) return Dim::symbol(name, low, high);
  const std::string_view op = rest.starts_with(" of ") ? rest.substr(4) : std::string_view();
  if (low != 0 || op.empty() ||
      !std::all_of(op.begin(), op.end(), [](char c) { return is_letter(c) || is_digit(c) || c == '.'; }))
    refuse();
  return Dim::count(name, high, op);
}

std::string Dim::to_string() const {
  if (!is_symbolic()) return std::to_string(value_);
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.print(table.polynomial(*this));
}

int64_t Dim::throw_symbolic() const {
  if (const std::string op = counted_by(); !op.empty())
    throw Error(
        fmt::format("{}: the count {} depends on values, and here is no memory to read it from", op, to_string()));
  throw Error("dim " + to_string() + " is symbolic: it has no value yet");
}

int64_t Dim::low() const {
  if (!is_symbolic()) return value_;
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.bounds(table.polynomial(*this)).low;
}

int64_t Dim::high() const {
  if (!is_symbolic()) return value_;
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  return table.bounds(table.polynomial(*this)).high;
}

bool Dim::is_symbol() const {
  if (!is_symbolic()) return false;
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  const DimTable::Atom* const only = table.only_atom(*this);
  return only && only->is_symbol();
}

std::string Dim::name() const {
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  const DimTable::Atom* const only = is_symbolic() ? table.only_atom(*this) : nullptr;
  if (!only || !only->is_symbol()) throw Error("a dim that is no symbol has no name");
  return only->name;
}

std::string Dim::counted_by() const {
  if (!is_symbolic()) return {};
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  for (auto& [name, v] : table.symbols(table.polynomial(*this)))
    if (const std::string& op = table.atoms[static_cast<size_t>(v)].op; !op.empty()) return op;
  return {};
}

std::vector<Dim> Dim::symbols() const {
  std::vector<Dim> all;
  if (!is_symbolic()) return all;
  auto& table = DimTable::get();
  std::lock_guard lock(table.mutex);
  for (auto& [name, v] : table.symbols(table.polynomial(*this)))
    all.push_back(table.intern({{DimTable::Monomial{{v, 1}}, 1}}));
  return all;
}

std::vector<DimTerm> DimTable::terms(Dim d) {
  std::lock_guard lock(mutex);
  std::vector<DimTerm> all;
  for (auto& [m, c] : polynomial(d)) {
    DimTerm& term = all.emplace_back(DimTerm{c, {}});
    for (auto& [v, e] : m) {
      const Atom a = atoms[static_cast<size_t>(v)];
      const DimFactor factor{intern({{Monomial{{v, 1}}, 1}}), a.numerator, a.denominator};
      term.factors.insert(term.factors.end(), static_cast<size_t>(e), factor);
    }
  }
  return all;
}
std::vector<DimTerm> terms_of(Dim dim) { return DimTable::get().terms(dim); }

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
  if (!b.is_symbolic() && b.value_ > 1) return table.divide_by(pa, b.value_);
  auto both_sides = pa;
  for (auto& [m, c] : pb) both_sides.emplace(m, c);
  table.symbols(both_sides);  // of one name can be only one
  return table.atom({"floor((" + table.print(pa) + ")/(" + table.print(pb) + "))", a, b});
}

// With `replace(atom, handle)` in the place of each symbol.
template <class Replace>
static Dim substituted(Dim d, const Replace& replace) {
  if (!d.is_symbolic()) return d;
  auto& table = DimTable::get();
  DimTable::Polynomial p;
  std::map<int, DimTable::Atom> atoms;
  {
    std::lock_guard lock(table.mutex);
    p = table.polynomial(d);
    for (auto& [m, c] : p)
      for (auto& [v, e] : m) atoms.emplace(v, table.atoms[static_cast<size_t>(v)]);
  }
  Dim sum = 0;
  for (auto& [m, c] : p) {
    Dim term = c;
    for (auto& [v, e] : m) {
      const DimTable::Atom& a = atoms.at(v);
      const Dim factor =
          a.is_symbol() ? replace(a) : substituted(a.numerator, replace) / substituted(a.denominator, replace);
      for (int i = 0; i < e; ++i) term = term * factor;
    }
    sum = sum + term;
  }
  return sum;
}

Dim DimTable::symbol(const Atom& a) {
  std::lock_guard lock(mutex);
  return atom(a);
}

Dim Dim::substitute(std::string_view name, int64_t value) const {
  return substituted(*this,
                     [&](const auto& atom) { return atom.name == name ? Dim(value) : DimTable::get().symbol(atom); });
}

Dim Dim::substitute(std::span<const std::pair<Dim, Dim>> values) const {
  if (values.empty()) return *this;
  return substituted(*this, [&](const auto& atom) {
    const Dim symbol = DimTable::get().symbol(atom);
    for (const auto& [from, to] : values)
      if (from == symbol) return to;
    return symbol;
  });
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

bool is_row_major(const Shape& shape, const Strides& strides) {
  int64_t step = 1;
  for (int64_t i = shape.rank() - 1; i >= 0; --i) {
    int64_t n = shape[i].value();
    if (n == 0) return true;
    if (n != 1 && strides[i] != step) return false;
    step *= n;
  }
  return true;
}

DimStrides contiguous_dim_strides(const Shape& shape) {
  DimStrides strides(shape.size());
  Dim step = 1;
  for (int64_t i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    if (!(shape[i] == Dim(0))) step = step * shape[i];
  }
  return strides;
}

DimStrides dims_of(const Strides& strides) {
  DimStrides out;
  out.append(strides.begin(), strides.end());
  return out;
}

Strides integers(const DimStrides& strides) {
  Strides out(strides.size());
  for (size_t i = 0; i < strides.size(); ++i) out[i] = strides[i].value();
  return out;
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
