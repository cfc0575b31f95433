#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "io/io_check.h"
#include "tessera/io.h"

namespace tessera {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(data_bytes, '\x01');
}

std::string header_error(const std::string& header, size_t data_bytes) {
  return file_error([&] { SafeTensors::from_bytes(file_of(header, data_bytes), "x.safetensors"); });
}

TEST(SafeTensors, RoundTripKeepsEveryDType) {
  TemporaryFolder folder;
  std::mt19937 random(1);
  StateDict out;
  for (int i = 0; i < kDTypeCount; ++i) {
    Tensor t = empty({i + 1, 7}, static_cast<DType>(i));
    auto* p = static_cast<unsigned char*>(t.data_ptr());
    for (size_t b = 0; b < 7 * static_cast<size_t>(i + 1) * size_of(t.dtype()); ++b)
      p[b] = static_cast<unsigned char>(t.dtype() == Bool ? random() % 2 : random());
    out["t." + std::string(name(t.dtype()))] = t;
  }
  out["scalar"] = tensor<float>({2.5f}, {});
  out["none"] = empty({3, 0, 2}, Int64);
  save_safetensors(folder / "a.safetensors", out, {{"format", "pt"}});

  SafeTensors file(folder / "a.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.names().size(), out.size());
  for (const auto& [key, t] : out) {
    EXPECT_EQ(describe(file.meta(key)), describe(t)) << key;
    EXPECT_TRUE(same_bytes(file.tensor(key), t)) << key;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "a.safetensors.tmp"));
}

TEST(SafeTensors, TensorsOutliveTheFileAndDoNotWriteToIt) {
  TemporaryFolder folder;
  save_safetensors(folder / "a", {{"x", tensor<float>({1, 2, 3}, {3})}});
  Tensor x = load_safetensors(folder / "a")["x"];
  x.data<float>()[1] = 9;
  EXPECT_EQ(load_safetensors(folder / "a")["x"].data<float>()[1], 2);
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(x.data<float>()[1], 9);
}

TEST(SafeTensors, MisalignedTensorsAreCopied) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const SafeTensors file = SafeTensors::from_bytes(file_of(header, 9));
  const Tensor b = file.tensor("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data_ptr()) % 4, 0u);
  uint32_t bits;
  std::memcpy(&bits, b.data_ptr(), 4);
  EXPECT_EQ(bits, 0x01010101u);
}

TEST(SafeTensors, RefusesHeadersThatLieAboutTheirSize) {
  for (uint64_t size : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}, uint64_t{3}}) {
    std::string bytes(reinterpret_cast<const char*>(&size), 8);
    bytes += "{}";
    EXPECT_EQ(file_error([&] { SafeTensors::from_bytes(bytes, "x"); }),
              "x: a header of " + std::to_string(size) + " bytes in a file of 10: not safetensors, or truncated");
  }
  EXPECT_EQ(file_error([&] { SafeTensors::from_bytes("1234567", "x"); }),
            "x: 7 bytes are too few for a safetensors file");
}

TEST(SafeTensors, RefusesEveryBadHeader) {
  const struct {
    const char* header;
    size_t data;
    const char* error;
  } cases[] = {
      {"", 0, "the header is not a JSON object"},
      {"[]", 0, "the header is not a JSON object"},
      {R"({"a":)", 0, "the header is not a JSON object"},
      {R"({"a\ud800":1})", 0, "the header is not a JSON object"},
      {R"({"a":[[[[[[[1]]]]]]]})", 0, "the header is nested too deeply"},
      {R"({"a":3})", 0, "tensor \"a\": needs exactly dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "tensor \"a\": needs exactly dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "tensor \"a\": unsupported dtype \"\"F31\"\""},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "tensor \"a\": unsupported dtype \"7\""},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "tensor \"a\": size \"-1\" is not a count"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "tensor \"a\": size \"1.0\" is not a count"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
       "tensor \"a\": size \"18446744073709551615\" is not a count"},
      {R"({"a":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4,
       "tensor \"a\": the shape is not a list of at most 64 sizes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "tensor \"a\": data_offsets are not two counts"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4,
       "tensor \"a\": data_offsets are not two counts"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 4,
       "tensor \"a\": offsets 0 to 8 leave the data of 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
       "tensor \"a\": offsets 4 to 0 leave the data of 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551612]}})", 4,
       "tensor \"a\": offsets 0 to 18446744073709551612 leave the data of 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "tensor \"a\": f32[2] does not take 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "tensor \"a\": f32[4294967296, 4294967296] does not take 0 bytes"},
      {R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})", 0,
       "tensor \"a\": f32[0, 4611686018427387904, 8] does not take 0 bytes"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "an overlap at tensor \"b\""},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, "an overlap at tensor \"b\""},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
       9, "a hole before tensor \"b\""},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, "a hole before tensor \"a\""},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5, "1 bytes after the last tensor"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "the key \"a\" appears twice"},
      {R"({"a":{"dtype":"F64","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "the key \"dtype\" appears twice"},
      {R"({"__metadata__":{"k":"1","l":"2","k":"1"}})", 0, "the key \"k\" appears twice"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"k":1}})", 0, "metadata \"k\" is not a string"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(header_error(c.header, c.data), std::string("x.safetensors: ") + c.error) << c.header;
}

TEST(SafeTensors, DeepNestingNeedsNoStack) {
  EXPECT_EQ(header_error("{\"a\":" + std::string(1 << 20, '['), 0), "x.safetensors: the header is nested too deeply");
}

TEST(SafeTensors, ErrorsStayOnOneLine) {
  const std::string error = header_error(R"({"a\nb":3})", 0);
  EXPECT_EQ(error, "x.safetensors: tensor \"a\\x0ab\": needs exactly dtype, shape and data_offsets");
  const std::string many(1000, 'n');
  EXPECT_LT(header_error("{\"" + many + "\":3}", 0).size(), 300u);
}

TEST(SafeTensors, BoolElementsMustBeZeroOrOne) {
  std::string bytes = file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  EXPECT_TRUE(SafeTensors::from_bytes(bytes).tensor("a").data<bool>()[1]);
  bytes.back() = 2;
  EXPECT_EQ(file_error([&] { SafeTensors::from_bytes(bytes, "x").tensor("a"); }),
            "x: tensor \"a\": bool elements that are neither 0 nor 1");
}

TEST(SafeTensors, NamesThatAreNotThere) {
  TemporaryFolder folder;
  save_safetensors(folder / "a", {});
  EXPECT_EQ(file_error([&] { SafeTensors(folder / "a").tensor("w"); }), (folder / "a") + ": no tensor \"w\"");
  EXPECT_EQ(file_error([&] { SafeTensors(folder / "b"); }),
            "cannot open \"" + (folder / "b") + "\": No such file or directory");
  EXPECT_EQ(file_error([&] { SafeTensors(folder / ""); }), "cannot read \"" + (folder / "") + "\": Is a directory");
  EXPECT_EQ(error_of([&] { save_safetensors(folder / "none/a", {}); }),
            "cannot write \"" + (folder / "none/a") + "\": No such file or directory");
  EXPECT_THROW(save_safetensors(folder / "a", {{"\xff", empty({1})}}), Error);
  EXPECT_THROW(save_safetensors(folder / "a", {{"__metadata__", empty({1})}}), Error);
  EXPECT_EQ(SafeTensors(folder / "a").names().size(), 0u);
}

}  // namespace
}  // namespace tessera
