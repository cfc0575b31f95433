// ONNX's messages as plain structs, and their fields as one table: reader and writer are made of it. Text and bytes are
// views of the file, which must outlive them. https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace tessera::onnx {

/// Bytes without data() are absent, which differs from bytes of no length.
using Bytes = std::string_view;

/// A message that may be absent, and may hold messages of its own kind.
template <class T>
class Optional {
 public:
  Optional() = default;
  Optional(const Optional& other) : value_(other.value_ ? std::make_unique<T>(*other.value_) : nullptr) {}
  Optional(Optional&&) noexcept = default;
  Optional& operator=(Optional other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  T& make() {
    if (!value_) value_ = std::make_unique<T>();
    return *value_;
  }
  explicit operator bool() const { return static_cast<bool>(value_); }
  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }

 private:
  std::unique_ptr<T> value_;
};

/// TensorProto.DataType, as far as there are names for it here.
enum DataType : int32_t {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
};

struct StringPair {
  Bytes key = {}, value = {};
};

struct TensorProto {
  std::vector<int64_t> dims = {};
  int64_t data_type = 0;
  std::vector<float> float_data = {};
  std::vector<int64_t> int32_data = {};
  std::vector<Bytes> string_data = {};
  std::vector<int64_t> int64_data = {};
  Bytes name = {}, raw_data = {};
  std::vector<double> double_data = {};
  std::vector<int64_t> uint64_data = {};
  std::vector<StringPair> external_data = {};
  int64_t data_location = 0;  // 1: in a file of its own
};

struct SparseTensorProto {
  Optional<TensorProto> values = {}, indices = {};
  std::vector<int64_t> dims = {};
};

struct Dimension {
  Optional<int64_t> value = {};
  Bytes param = {};
};
struct TensorShapeProto {
  std::vector<Dimension> dims = {};
};
struct TensorType {
  int64_t elem_type = 0;
  Optional<TensorShapeProto> shape = {};
};
struct TypeProto;
struct ElementType {  // of a sequence, or of an optional
  Optional<TypeProto> elem_type = {};
};
struct TypeProto {
  Optional<TensorType> tensor = {}, sparse_tensor = {};
  Optional<ElementType> sequence = {}, optional = {}, map = {};
};
struct ValueInfoProto {
  Bytes name = {};
  Optional<TypeProto> type = {};
};

struct GraphProto;
/// AttributeProto.AttributeType.
enum AttributeType : int32_t {
  kFloatAttribute = 1,
  kIntAttribute,
  kStringAttribute,
  kTensorAttribute,
  kGraphAttribute,
  kFloatsAttribute,
  kIntsAttribute,
  kStringsAttribute,
  kTensorsAttribute,
  kGraphsAttribute,
  kSparseTensorAttribute,
  kSparseTensorsAttribute,
  kTypeAttribute,
  kTypesAttribute,
};
struct AttributeProto {
  Bytes name = {}, reference = {};  // reference: to an attribute of the function that this is in
  int64_t type = 0;
  float f = 0;
  int64_t i = 0;
  Bytes s = {};
  Optional<TensorProto> t = {};
  Optional<GraphProto> g = {};
  std::vector<float> floats = {};
  std::vector<int64_t> ints = {};
  std::vector<Bytes> strings = {};
  std::vector<TensorProto> tensors = {};
  Optional<SparseTensorProto> sparse_tensor = {};
  Optional<TypeProto> type_proto = {};
};

struct NodeProto {
  std::vector<Bytes> inputs = {}, outputs = {};  // an empty name: absent
  Bytes name = {}, op_type = {}, domain = {}, overload = {};
  std::vector<AttributeProto> attributes = {};
};

struct GraphProto {
  std::vector<NodeProto> nodes = {};
  Bytes name = {};
  std::vector<TensorProto> initializers = {};
  std::vector<SparseTensorProto> sparse_initializers = {};
  std::vector<ValueInfoProto> inputs = {}, outputs = {}, values = {};
};

struct OperatorSet {
  Bytes domain = {};
  int64_t version = 0;
};

struct FunctionProto {
  Bytes name = {}, domain = {}, overload = {};
  std::vector<Bytes> inputs = {}, outputs = {}, attributes = {};
  std::vector<AttributeProto> defaults = {};  // attributes that calls may leave out
  std::vector<NodeProto> nodes = {};
  std::vector<OperatorSet> opsets = {};
};

struct ModelProto {
  int64_t ir_version = 0;
  std::vector<OperatorSet> opsets = {};
  Bytes producer_name = {}, producer_version = {}, domain = {}, doc = {};
  int64_t model_version = 0;
  Optional<GraphProto> graph = {};
  std::vector<StringPair> metadata = {};
  std::vector<FunctionProto> functions = {};
};

// Values in files of their own: inputs and outputs of tests.
struct SequenceProto {
  Bytes name = {};
  int64_t elem_type = 0;
  std::vector<TensorProto> tensors = {};
  std::vector<SequenceProto> sequences = {};
};
struct OptionalProto {
  Bytes name = {};
  int64_t elem_type = 0;
  Optional<TensorProto> tensor = {};
  Optional<SequenceProto> sequence = {};
};

// ---- the table

/// A field: its number in files, and the member that holds it.
template <int number_, auto member_>
struct Field {
  static constexpr int number = number_;
  static constexpr auto member = member_;
};

template <class Message>
struct Fields;

#define TESSERA_ONNX_FIELDS(Message, ...)                \
  template <>                                            \
  struct Fields<Message> {                               \
    using M = Message;                                   \
    static constexpr auto all = std::tuple(__VA_ARGS__); \
  };

TESSERA_ONNX_FIELDS(StringPair, Field<1, &M::key>{}, Field<2, &M::value>{})
TESSERA_ONNX_FIELDS(TensorProto, Field<1, &M::dims>{}, Field<2, &M::data_type>{}, Field<4, &M::float_data>{},
                    Field<5, &M::int32_data>{}, Field<6, &M::string_data>{}, Field<7, &M::int64_data>{},
                    Field<8, &M::name>{}, Field<9, &M::raw_data>{}, Field<10, &M::double_data>{},
                    Field<11, &M::uint64_data>{}, Field<13, &M::external_data>{}, Field<14, &M::data_location>{})
TESSERA_ONNX_FIELDS(SparseTensorProto, Field<1, &M::values>{}, Field<2, &M::indices>{}, Field<3, &M::dims>{})
TESSERA_ONNX_FIELDS(Dimension, Field<1, &M::value>{}, Field<2, &M::param>{})
TESSERA_ONNX_FIELDS(TensorShapeProto, Field<1, &M::dims>{})
TESSERA_ONNX_FIELDS(TensorType, Field<1, &M::elem_type>{}, Field<2, &M::shape>{})
TESSERA_ONNX_FIELDS(ElementType, Field<1, &M::elem_type>{})
TESSERA_ONNX_FIELDS(TypeProto, Field<1, &M::tensor>{}, Field<4, &M::sequence>{}, Field<5, &M::map>{},
                    Field<8, &M::sparse_tensor>{}, Field<9, &M::optional>{})
TESSERA_ONNX_FIELDS(ValueInfoProto, Field<1, &M::name>{}, Field<2, &M::type>{})
TESSERA_ONNX_FIELDS(AttributeProto, Field<1, &M::name>{}, Field<2, &M::f>{}, Field<3, &M::i>{}, Field<4, &M::s>{},
                    Field<5, &M::t>{}, Field<6, &M::g>{}, Field<7, &M::floats>{}, Field<8, &M::ints>{},
                    Field<9, &M::strings>{}, Field<10, &M::tensors>{}, Field<14, &M::type_proto>{},
                    Field<20, &M::type>{}, Field<21, &M::reference>{}, Field<22, &M::sparse_tensor>{})
TESSERA_ONNX_FIELDS(NodeProto, Field<1, &M::inputs>{}, Field<2, &M::outputs>{}, Field<3, &M::name>{},
                    Field<4, &M::op_type>{}, Field<5, &M::attributes>{}, Field<7, &M::domain>{},
                    Field<8, &M::overload>{})
TESSERA_ONNX_FIELDS(GraphProto, Field<1, &M::nodes>{}, Field<2, &M::name>{}, Field<5, &M::initializers>{},
                    Field<11, &M::inputs>{}, Field<12, &M::outputs>{}, Field<13, &M::values>{},
                    Field<15, &M::sparse_initializers>{})
TESSERA_ONNX_FIELDS(OperatorSet, Field<1, &M::domain>{}, Field<2, &M::version>{})
TESSERA_ONNX_FIELDS(FunctionProto, Field<1, &M::name>{}, Field<4, &M::inputs>{}, Field<5, &M::outputs>{},
                    Field<6, &M::attributes>{}, Field<7, &M::nodes>{}, Field<9, &M::opsets>{}, Field<10, &M::domain>{},
                    Field<11, &M::defaults>{}, Field<13, &M::overload>{})
TESSERA_ONNX_FIELDS(ModelProto, Field<1, &M::ir_version>{}, Field<2, &M::producer_name>{},
                    Field<3, &M::producer_version>{}, Field<4, &M::domain>{}, Field<5, &M::model_version>{},
                    Field<6, &M::doc>{}, Field<7, &M::graph>{}, Field<8, &M::opsets>{}, Field<14, &M::metadata>{},
                    Field<25, &M::functions>{})
TESSERA_ONNX_FIELDS(SequenceProto, Field<1, &M::name>{}, Field<2, &M::elem_type>{}, Field<3, &M::tensors>{},
                    Field<5, &M::sequences>{})
TESSERA_ONNX_FIELDS(OptionalProto, Field<1, &M::name>{}, Field<2, &M::elem_type>{}, Field<3, &M::tensor>{},
                    Field<5, &M::sequence>{})

#undef TESSERA_ONNX_FIELDS

/// Reads a message of one of the types ModelProto, TensorProto, SequenceProto and OptionalProto. Throws FileError,
/// which begins with `file`, where the bytes are none.
template <class Message>
Message read_proto(Bytes bytes, const std::string& file);
/// The bytes of a message of one of the types ModelProto, NodeProto and TensorProto.
/// `bytes`: about how many there will be, if that is known.
template <class Message>
std::string write_proto(const Message& message, size_t bytes = 0);

}  // namespace tessera::onnx
