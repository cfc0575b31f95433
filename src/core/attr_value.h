// Attributes of operators as values: set by name from text or by a program, compared, printed and read back.
#pragma once
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/attributes.h"
#include "tessera/enums.h"

namespace tessera {

/// Cuts `a=1, b=[2, 3], c="x, y"` at the commas that stand outside of brackets and quotes. Throws Error on an open one.
std::vector<std::string_view> split_list(std::string_view text);

/// How a member of an attributes' struct is a value. `assign` says no where the value is of another kind.
template <class T>
struct AttrTraits {  // what the variant holds itself
  static AttrValue value(const T& member) { return member; }
  static bool assign(T& member, const AttrValue& value) {
    if (const T* same = std::get_if<T>(&value)) return member = *same, true;
    return false;
  }
  static bool equal(const T& a, const T& b) { return a == b; }
};
template <class T>
constexpr AttrKind kind_of() {
  if constexpr (std::is_array_v<T>) return AttrKind::Ints;
  else if constexpr (std::is_enum_v<T> && !std::is_same_v<T, DType>) return AttrKind::Text;
  else {
    constexpr bool is[] = {std::is_same_v<T, bool>,   std::is_same_v<T, int64_t>,        std::is_same_v<T, double>,
                           std::is_same_v<T, Dim>,    std::is_same_v<T, std::string>,    std::is_same_v<T, DType>,
                           std::is_same_v<T, Device>, std::is_same_v<T, IntList>,        std::is_same_v<T, DimList>,
                           std::is_same_v<T, Tensor>, std::is_same_v<T, Ref<AttrObject>>};
    return static_cast<AttrKind>(std::find(is, is + std::size(is), true) - is);
  }
}

template <>
struct AttrTraits<double> {
  static AttrValue value(double member) { return member; }
  static bool assign(double& member, const AttrValue& value);  // integers, too
  static bool equal(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
};
template <>
struct AttrTraits<Dim> {
  static AttrValue value(Dim member) { return member; }
  static bool assign(Dim& member, const AttrValue& value);  // integers, too
  static bool equal(Dim a, Dim b) { return a == b; }
};
template <>
struct AttrTraits<DimList> {
  static AttrValue value(const DimList& member) { return member; }
  static bool assign(DimList& member, const AttrValue& value);  // lists of integers, too
  static bool equal(const DimList& a, const DimList& b) { return a == b; }
};
template <>
struct AttrTraits<Tensor> {
  static AttrValue value(const Tensor& member) { return member; }
  static bool assign(Tensor& member, const AttrValue& value);
  static bool equal(const Tensor& a, const Tensor& b);  // element by element
};
template <>
struct AttrTraits<Ref<AttrObject>> {
  static AttrValue value(const Ref<AttrObject>& member) { return member; }
  static bool assign(Ref<AttrObject>& member, const AttrValue& value);
  static bool equal(const Ref<AttrObject>& a, const Ref<AttrObject>& b) { return a == b || (a && b && a->equals(*b)); }
};
template <size_t n>
struct AttrTraits<int64_t[n]> {
  static AttrValue value(const int64_t (&member)[n]) { return IntList(std::span<const int64_t>(member)); }
  static bool assign(int64_t (&member)[n], const AttrValue& value) {
    const IntList* list = std::get_if<IntList>(&value);
    return list && list->size() == n && (std::copy(list->begin(), list->end(), member), true);
  }
  static bool equal(const int64_t (&a)[n], const int64_t (&b)[n]) { return std::equal(a, a + n, b); }
};
template <>
struct AttrTraits<Activation> {
  static AttrValue value(Activation member);
  static bool assign(Activation& member, const AttrValue& value);
  static bool equal(Activation a, Activation b) { return a == b; }
};
template <>
struct AttrTraits<Reduction> {
  static AttrValue value(Reduction member);
  static bool assign(Reduction& member, const AttrValue& value);
  static bool equal(Reduction a, Reduction b) { return a == b; }
};

/// Words that are equal where, and only where, calls are alike.
using KeyWords = SmallVector<uint64_t, 64>;
template <class T>
void add_key(KeyWords& words, const T& member) {
  if constexpr (std::is_same_v<T, Tensor>) words.push_back(reinterpret_cast<uintptr_t>(member.ref().get()));
  else if constexpr (std::is_same_v<T, Ref<AttrObject>>) words.push_back(reinterpret_cast<uintptr_t>(member.get()));
  else if constexpr (std::is_same_v<T, std::string>) {
    words.push_back(member.size());
    for (size_t at = 0; at < member.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, member.data() + at, std::min<size_t>(8, member.size() - at));
      words.push_back(word);
    }
  } else if constexpr (std::is_same_v<T, IntList> || std::is_same_v<T, DimList>) {
    words.push_back(static_cast<uint64_t>(member.count));
    for (int64_t i = 0; i < member.count; ++i) add_key(words, member.values[i]);
  } else if constexpr (std::is_array_v<T>) {
    for (const auto& item : member) add_key(words, item);
  } else if constexpr (std::is_same_v<T, Device>) {
    words.push_back(static_cast<uint64_t>(member.type) << 16 | static_cast<uint8_t>(member.index) << 8 | member.meta);
  } else if constexpr (std::is_same_v<T, Dim>) {
    words.push_back(member.is_symbolic() ? ~uint64_t{0} : static_cast<uint64_t>(member.value()));
  } else {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 && (std::is_arithmetic_v<T> || std::is_enum_v<T>));
    uint64_t word = 0;
    std::memcpy(&word, &member, sizeof member);
    words.push_back(word);
  }
}

/// One attribute of a struct.
struct AttrField {
  std::string_view name;
  AttrKind kind;
  size_t count;  ///< of a list whose length is fixed; otherwise 0
  size_t index;  ///< among those of its struct
  AttrValue (*get)(const void* attrs, size_t index);
  bool (*set)(void* attrs, size_t index, const AttrValue& value);  ///< no: of another kind or length
  bool (*equal)(const void* a, const void* b, size_t index);
};

/// What an attributes' struct consists of.
struct AttrsType {
  std::vector<AttrField> fields;
  const void* defaults;  ///< a struct that nobody has changed
};

/// Any one of the structs of core/attrs.h, by value: small ones without an allocation, those that own memory shared.
class Attrs {
 public:
  Attrs();
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Attrs>) Attrs(const T& value) : type_(&type_of<T>) {
    if constexpr (is_small<T>) std::memcpy(static_cast<void*>(data_), &value, sizeof(T));
    else new (data_) Ref<Box>(Ref<Box>(make_ref<BoxOf<T>>(value)));
  }
  Attrs(const Attrs& other) : type_(other.type_) { copy_from(other); }
  Attrs& operator=(const Attrs& other) {
    if (this == &other) return *this;
    drop();
    type_ = other.type_;
    copy_from(other);
    return *this;
  }
  ~Attrs() { drop(); }

  /// Throws Error unless that is the struct within.
  template <class T>
  const T& as() const {
    if (type_ != &type_of<T>) throw_other();
    return *static_cast<const T*>(address());
  }

  /// What differs from the defaults, "dim=1, keepdim=true": different attributes have different texts.
  std::string describe() const;
  friend bool operator==(const Attrs& a, const Attrs& b);
  /// Words for a cache of calls. Tensors and objects are themselves, not their values; a symbol has none of its own.
  void add_to_key(KeyWords& words) const {
    words.push_back(reinterpret_cast<uintptr_t>(type_));
    type_->key(words, address());
  }

  /// Names, kinds and defaults.
  const AttrsType& type() const { return type_->reflect(address()); }
  /// Throws Error `no attribute 'axis', of: dim, keepdim`.
  AttrValue get(std::string_view name) const;
  /// Throws Error as get does, and `'dim' is an int, not "x"`.
  void set(std::string_view name, const AttrValue& value);
  /// The same from text, `set("dim", "1")`.
  void set_text(std::string_view name, std::string_view text);
  /// Sets what "dim=1, keepdim=true" names. Throws Error also where a name stands twice.
  void read(std::string_view text);

 private:
  static constexpr size_t kRoom = 152;
  template <class T>
  static constexpr bool is_small = std::is_trivially_copyable_v<T> && sizeof(T) <= kRoom;

  struct Box : RefCounted {
    virtual ~Box() = default;
    virtual Ref<Box> clone() const = 0;
    virtual void* address() = 0;
  };
  template <class T>
  struct BoxOf final : Box {
    explicit BoxOf(const T& value) : value(value) {}
    Ref<Box> clone() const override { return make_ref<BoxOf>(value); }
    void* address() override { return &value; }
    T value;
  };
  struct Type {
    bool small;
    const AttrsType& (*reflect)(const void* attrs);
    void (*key)(KeyWords& words, const void* attrs);
  };
  template <class T>
  static const AttrsType& reflect(const void* attrs);
  template <class T>
  static const AttrsType& reflect_members();
  template <class T>
  static void key_of(KeyWords& words, const void* attrs) {
    const T& given = *static_cast<const T*>(attrs);
    if constexpr (requires { given.add_to_key(words); }) given.add_to_key(words);
    else std::apply([&](const auto&... members) { (add_key(words, members), ...); }, given.members());
  }
  template <class T>
  static constexpr Type type_of{is_small<T>, &reflect<T>, &key_of<T>};

  Ref<Box>& box() const { return *std::launder(reinterpret_cast<Ref<Box>*>(const_cast<std::byte*>(data_))); }
  const void* address() const { return type_->small ? data_ : box()->address(); }
  void* writable_address();  // of a box that nobody else sees
  void copy_from(const Attrs& other) {
    if (type_->small) std::memcpy(data_, other.data_, kRoom);
    else new (data_) Ref<Box>(other.box());
  }
  void drop() {
    if (!type_->small) box().~Ref();
  }
  const AttrField& field(std::string_view name) const;
  [[noreturn]] static void throw_other();

  const Type* type_;
  alignas(8) std::byte data_[kRoom];
};

/// The names in "a, b, c", which must outlive the result.
std::vector<std::string_view> split_names(std::string_view names);

// A struct whose members are known at run time only says itself what they are.
template <class T>
const AttrsType& Attrs::reflect(const void* attrs) {
  if constexpr (requires(const T& t) { t.attrs_type(); }) return static_cast<const T*>(attrs)->attrs_type();
  else return reflect_members<T>();
}

template <class T>
const AttrsType& Attrs::reflect_members() {
  static const T defaults{};
  static const AttrsType type = [] {
    AttrsType made{{}, &defaults};
    const std::vector<std::string_view> names = split_names(T::attr_names);
    using Members = decltype(std::declval<const T&>().members());
    [&]<size_t... i>(std::index_sequence<i...>) {
      [[maybe_unused]] const auto add = [&]<size_t k>(std::integral_constant<size_t, k>) {
        using M = std::remove_cvref_t<std::tuple_element_t<k, Members>>;
        AttrField field{};
        field.name = names.at(k);
        field.kind = kind_of<M>();
        field.index = k;
        if constexpr (std::is_array_v<M>) field.count = std::extent_v<M>;
        field.get = [](const void* attrs, size_t) {
          return AttrTraits<M>::value(std::get<k>(static_cast<const T*>(attrs)->members()));
        };
        field.set = [](void* attrs, size_t, const AttrValue& value) {
          return AttrTraits<M>::assign(std::get<k>(static_cast<T*>(attrs)->members()), value);
        };
        field.equal = [](const void* a, const void* b, size_t) {
          return AttrTraits<M>::equal(std::get<k>(static_cast<const T*>(a)->members()),
                                      std::get<k>(static_cast<const T*>(b)->members()));
        };
        made.fields.push_back(field);
      };
      (add(std::integral_constant<size_t, i>()), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Members>>());
    return made;
  }();
  return type;
}

}  // namespace tessera
