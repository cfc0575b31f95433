#include <gtest/gtest.h>

#include "io/io_check.h"
#include "tessera/io.h"

namespace tessera {
namespace {

std::string npy(const std::string& header, size_t data_bytes, char version = 1) {
  std::string out = std::string("\x93NUMPY") + version + '\0';
  out += static_cast<char>(header.size());
  out += '\0';
  if (version > 1) out += std::string(2, '\0');
  return out + header + std::string(data_bytes, '\x01');
}

std::string npy_error(const std::string& bytes) {
  return file_error([&] { parse_npy(bytes, "x.npy"); });
}

TEST(Npy, RoundTrip) {
  TemporaryFolder folder;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == BFloat16) continue;
    for (const Shape& shape : {Shape{3, 5, 7}, Shape{11}, Shape{}, Shape{2, 0}}) {
      Tensor t = empty(shape, dtype);
      for (size_t b = 0; b < static_cast<size_t>(t.numel()) * size_of(dtype); ++b)
        static_cast<char*>(t.data_ptr())[b] = static_cast<char>(dtype == Bool ? b % 2 : b);
      save_npy(folder / "a.npy", t);
      EXPECT_TRUE(same_bytes(load_npy(folder / "a.npy"), t)) << describe(t);
      EXPECT_EQ(read_file(folder / "a.npy").find('\n') % 64, 63u);
    }
  }
  EXPECT_THROW(save_npy(folder / "a.npy", empty({1}, BFloat16)), Error);
}

// As np.save(x.T) makes them: the first dim runs first.
TEST(Npy, FortranOrderIsRead) {
  std::string bytes = npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", 6);
  for (char i = 0; i < 6; ++i) bytes[bytes.size() - 6 + static_cast<size_t>(i)] = i;
  const Tensor t = parse_npy(bytes, "x.npy");
  EXPECT_EQ(t.shape(), (Shape{2, 3}));
  EXPECT_EQ(t.to_vector<uint8_t>(), (std::vector<uint8_t>{0, 2, 4, 1, 3, 5}));
}

TEST(Npy, ReadsWhatNumPyWrites) {
  const char* header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }        \n";
  for (char version : {1, 2, 3}) {
    const Tensor t = parse_npy(npy(header, 24, version));
    EXPECT_EQ(describe(t), "i32[2, 3] on cpu");
    EXPECT_EQ(t.data<int32_t>()[5], 0x01010101);
  }
  EXPECT_EQ(describe(parse_npy(npy("{\"shape\":(3,),\"fortran_order\":False,\"descr\":\"|b1\"}", 3))),
            "bool[3] on cpu");
}

TEST(Npy, RefusesEveryBadFile) {
  const auto with = [](const char* descr, const char* order, const char* shape) {
    return std::string("{'descr': ") + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  };
  const struct {
    std::string bytes;
    const char* error;
  } cases[] = {
      {"", "not an npy file"},
      {"\x93NUMPY\x01", "not an npy file"},
      {npy("", 0, 9), "npy format 9 is not supported"},
      {npy(with("'<f4'", "False", "(2,)"), 0).substr(0, 40), "truncated npy header"},
      {npy(with("'<f4'", "False", "(2,)"), 7), "f32[2] does not take 7 bytes"},
      {npy(with("'<f4'", "False", "(2,)"), 9), "f32[2] does not take 9 bytes"},
      {npy(with("'<f4'", "False", "(4294967296, 4294967296)"), 0), "f32[4294967296, 4294967296] does not take 0 bytes"},
      {npy(with("'<f4'", "False", "(0, 4611686018427387904, 8)"), 0),
       "f32[0, 4611686018427387904, 8] does not take 0 bytes"},
      {npy(with("'<f4'", "False", "(99999999999999999999,)"), 0), "bad npy header: a size is not a count"},
      {npy(with("'<f4'", "False", "(-1,)"), 0), "bad npy header: a size is not a count"},
      {npy(with("'<f4'", "False", "(1 1)"), 4), "bad npy header: expected , or )"},
      {npy(with("'<f4'", "False", "2"), 8), "bad npy header: expected ("},
      {npy(with("'>f4'", "False", "(2,)"), 8), "elements of type \">f4\" are not supported"},
      {npy(with("''", "False", "(2,)"), 8), "elements of type \"\" are not supported"},
      {npy(with("[('a', '<f4')]", "False", "(2,)"), 8), "structured arrays are not supported"},
      {npy(with("'<f4'", "True", "(3,)"), 8), "f32[3] does not take 8 bytes"},
      {npy(with("'<f4'", "Fortran", "(2,)"), 8), "bad npy header: expected False"},
      {npy(with("'<f4'", "Maybe", "(2,)"), 8), "bad npy header: expected False"},
      {npy("{'descr': '<f4', 'descr': '<f4', }", 0), "bad npy header: unexpected \"descr\""},
      {npy("{'descr': '<f4'}", 0), "bad npy header: needs exactly descr, fortran_order and shape"},
      {npy("{'descr': '<f4", 0), "bad npy header: a string does not end"},
      {npy("{", 0), "bad npy header: expected \""},
      {npy(with("'|b1'", "False", "(2,)"), 1) + '\x02', "bool elements that are neither 0 nor 1"},
  };
  for (const auto& c : cases) EXPECT_EQ(npy_error(c.bytes), std::string("x.npy: ") + c.error);
}

}  // namespace
}  // namespace tessera
