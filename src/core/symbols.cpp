#include "core/symbols.h"

#include <algorithm>

#include <fmt/format.h>

namespace tessera {

void Symbols::add(Dim dim) {
  for (const Dim symbol : dim.symbols()) {
    if (std::find(all_.begin(), all_.end(), symbol) != all_.end()) continue;
    for (const Dim other : all_)
      if (other.name() == symbol.name()) (void)(other + symbol);  // says that two have one name
    all_.push_back(symbol);
  }
}

void Symbols::add_all(const Attrs& attrs) {
  for (const AttrField& f : attrs.type().fields) {
    if (f.kind == AttrKind::Dim) add(std::get<Dim>(attrs.get(f.name)));
    else if (f.kind == AttrKind::Shape) add_all(std::get<DimList>(attrs.get(f.name)).shape());
  }
}

bool Symbols::has(std::string_view name) const {
  return std::any_of(all_.begin(), all_.end(), [&](Dim d) { return d.name() == name; });
}

Attrs with_dims(const Attrs& attrs, const std::function<Dim(Dim)>& fn) {
  Attrs out = attrs;
  for (const AttrField& f : attrs.type().fields) {
    if (f.kind == AttrKind::Dim) {
      out.set(f.name, fn(std::get<Dim>(attrs.get(f.name))));
    } else if (f.kind == AttrKind::Shape) {
      Shape shape = std::get<DimList>(attrs.get(f.name)).shape();
      for (Dim& d : shape) d = fn(d);
      out.set(f.name, DimList(shape));
    }
  }
  return out;
}

void SymbolValues::note(const Shape& wanted, const Shape& given) {
  for (size_t d = 0; d < std::min(wanted.size(), given.size()); ++d) {
    const Dim symbol = wanted[d], value = given[d];
    const bool known =
        std::any_of(values_.begin(), values_.end(), [&](const auto& pair) { return pair.first == symbol; });
    if (known || !symbol.is_symbol()) continue;
    if (value.low() < symbol.low() || value.high() > symbol.high())
      throw Error(fmt::format("{} is {}", bounds_text(symbol), value.to_string()));
    values_.emplace_back(symbol, value);
  }
}

Shape SymbolValues::of(Shape shape) const {
  for (Dim& d : shape) d = of(d);
  return shape;
}

Attrs SymbolValues::of(const Attrs& attrs) const {
  return with_dims(attrs, [&](Dim d) { return of(d); });
}

}  // namespace tessera
