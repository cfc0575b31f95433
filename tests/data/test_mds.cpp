#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "data/packed_bytes.h"
#include "io/io_check.h"
#include "tessera/io.h"
#include "tessera/mds.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const std::string kPng = std::string("\x89PNG\r\n\x1a\n", 8) + "rest", kJpeg = "\xff\xd8\xff rest";

const std::vector<MdsColumn> kColumns = {
    {"a", "ndarray"},
    {"b", "ndarray:float32"},
    {"c", "ndarray:uint16:3,5"},
    {"d", "int"},
    {"e", "uint8"},
    {"f", "float16"},
    {"g", "str"},
    {"h", "json"},
    {"i", "bytes"},
    {"j", "png"},
    {"k", "float64"},
    {"l", "jpeg"},
    {"m", "str_int"},
    {"n", "pil"},
    {"o", "int16"},
};

Tensor random_tensor(const Shape& shape, DType dtype, std::mt19937& random) {
  Tensor out = empty(shape, dtype);
  auto* bytes = static_cast<uint8_t*>(out.data_ptr());
  for (size_t i = 0; i < static_cast<size_t>(out.numel()) * size_of(dtype); ++i)
    bytes[i] = static_cast<uint8_t>(random());
  return out;
}

MdsSample random_sample(std::mt19937& random) {
  const auto size = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  const DType dtypes[] = {UInt8, Int8, Int16, UInt16, Int32, UInt32, Int64, UInt64, Float16, Float32, Float64};
  MdsSample out;
  out["a"] = random_tensor({size(5), size(300)}, dtypes[random() % 11], random);
  out["b"] = random_tensor({size(7), size(3), size(2)}, Float32, random);
  out["c"] = random_tensor({3, 5}, UInt16, random);
  for (const auto& [name, dtype] : {std::pair{"d", Int64}, {"e", UInt8}, {"f", Float16}, {"k", Float64}, {"o", Int16}})
    out[name] = random_tensor({}, dtype, random);
  out["g"] = std::string("tëxt ") + std::string(random() % 9, 'x') + std::string(random() % 2, '\0');
  out["h"] = fmt::format(R"({{"n": [{}, null]}})", random());
  out["i"] = std::string(random() % 40, static_cast<char>(random()));
  out["j"] = kPng;
  out["l"] = kJpeg;
  out["m"] = std::to_string(random());
  out["n"] = std::string("raw");
  return out;
}

void expect_same(const MdsSample& got, const MdsSample& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    const MdsValue& other = got.at(name);
    ASSERT_EQ(other.index(), value.index()) << name;
    if (const auto* bytes = std::get_if<std::string>(&value)) EXPECT_EQ(std::get<std::string>(other), *bytes) << name;
    else EXPECT_TRUE(same_bytes(std::get<Tensor>(other), std::get<Tensor>(value))) << name;
  }
}

std::vector<MdsSample> write_random(const std::string& folder, int count, const MdsWriterOptions& options,
                                    unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<MdsSample> samples;
  MdsWriter writer(folder, kColumns, options);
  for (int i = 0; i < count; ++i) {
    samples.push_back(random_sample(random));
    writer.write(samples.back());
  }
  writer.finish();
  return samples;
}

void change(const std::string& file, const std::function<void(std::string&)>& fn) {
  std::string bytes = read_file(file);
  fn(bytes);
  fs::remove(file);
  write_file(file, bytes);
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
}

class MdsRoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(MdsRoundTrip, EveryColumn) {
  TemporaryFolder folder;
  const std::vector<std::string> hashes = {"xxh64", "sha1", "xxh32", "xxh128", "xxh3_64", "xxh3_128"};
  const auto samples = write_random(folder / "data", 101, {GetParam(), hashes, 20000});
  const MdsReader reader(folder / "data");
  EXPECT_EQ(reader.size(), 101);
  EXPECT_GT(reader.shards().size(), 3u);
  for (int64_t i = 100; i >= 0; --i) expect_same(reader.sample(i), samples[static_cast<size_t>(i)]);
  int64_t all = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(reader.shards().size()); ++i) {
    reader.verify(i);
    all += reader.shard_sizes()[static_cast<size_t>(i)];
  }
  EXPECT_EQ(all, 101);
}
INSTANTIATE_TEST_SUITE_P(All, MdsRoundTrip, testing::Values("", "zstd", "zstd:1", "gz", "gz:1"));

TEST(Mds, HashesArePublished) {  // FIPS 180-4's example; xxHash's own of nothing
  EXPECT_EQ(hash_of("sha1", "abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(hash_of("sha1", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  EXPECT_EQ(hash_of("sha1", std::string(1000000, 'a')), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  EXPECT_EQ(hash_of("xxh64", ""), "ef46db3751d8e999");
  EXPECT_EQ(hash_of("xxh32", ""), "02cc5d05");
  EXPECT_EQ(error_of([] { hash_of("md5", ""); }),
            "unknown hash \"md5\", not of: xxh3_64, xxh3_128, xxh128, xxh64, xxh32, sha1");
}

TEST(Mds, KeepsWithinItsCache) {
  TemporaryFolder folder;
  const auto samples = write_random(folder / "data", 60, {"zstd", {}, 20000});
  const MdsReader reader(folder / "data", {.cache_limit = 1});  // one shard at a time
  std::mt19937 random(3);
  const MdsBytes held = reader.bytes(0, 0);
  const std::string before(held.bytes);
  for (int i = 0; i < 50; ++i) {
    const size_t at = random() % 60;
    expect_same(reader.sample(static_cast<int64_t>(at)), samples[at]);
  }
  EXPECT_EQ(held.bytes, before);  // though its shard has left
}

TEST(Mds, UncompressedGoesBeforeCompressed) {  // as the peer leaves a folder that it has read
  TemporaryFolder folder;
  write_random(folder / "plain", 9, {"", {"xxh64"}});
  const auto samples = write_random(folder / "data", 9, {"zstd", {"xxh64"}});
  const std::string packed = read_file(folder / "data/shard.00000.mds.zstd");
  const MdsReader first(folder / "data");
  const auto raw = decompress({"zstd", 3}, packed, static_cast<size_t>(first.shards()[0].bytes));
  write_file(folder / "data/shard.00000.mds", {raw->data, raw->size});
  fs::remove(folder / "data/shard.00000.mds.zstd");
  const MdsReader reader(folder / "data");
  expect_same(reader.sample(8), samples[8]);
  EXPECT_EQ(reader.shards()[0].file, "shard.00000.mds");
}

TEST(Mds, WriterRefuses) {
  TemporaryFolder folder;
  const auto refusal = [&](std::vector<MdsColumn> columns, MdsWriterOptions options = {}) {
    return error_of([&] { MdsWriter(folder / "w", std::move(columns), std::move(options)); });
  };
  EXPECT_EQ(refusal({}), "mds: a sample needs a column");
  EXPECT_EQ(refusal({{"x", "pkl"}}), "mds: column \"x\": \"pkl\" is refused: reading a pickle runs what is in it");
  EXPECT_EQ(refusal({{"x", "int128"}}), "mds: column \"x\": \"int128\" is no known encoding");
  EXPECT_EQ(refusal({{"x", "ndarray:bfloat16"}}),
            "mds: column \"x\": \"ndarray:bfloat16\" is of no known element type");
  for (const char* shape : {"0", "3,", "-1", "3,,4", "x", ""})
    EXPECT_EQ(refusal({{"x", std::string("ndarray:int8:") + shape}}),
              fmt::format("mds: column \"x\": \"ndarray:int8:{}\" has a shape that is no list of sizes of at least 1",
                          shape));
  EXPECT_EQ(refusal({{"x", "ndarray:int8:65536,65536"}}),
            "mds: column \"x\": \"ndarray:int8:65536,65536\" takes more than 4 GiB");
  EXPECT_EQ(refusal({{"x", "str"}, {"x", "int"}}), "mds: column \"x\" is there twice");
  EXPECT_EQ(refusal({{"x", "str"}}, {"br"}), "unknown compression \"br\", not of: zstd, gz");
  EXPECT_EQ(refusal({{"x", "str"}}, {"gz:10"}), "compression \"gz:10\": levels are 1 to 22 of zstd, 0 to 9 of gz");
  EXPECT_EQ(refusal({{"x", "str"}}, {"", {"sha1", "sha1"}}), "mds: a hash is there twice");
  EXPECT_EQ(refusal({{"x", "str"}}, {"", {}, 0}), "mds: a shard's limit of 0 bytes is not from 1 to 4 GiB");
  EXPECT_FALSE(fs::exists(folder / "w"));
  EXPECT_EQ(error_of([] {
              MdsWriter("s3://bucket/x", {{"x", "str"}});
            }),
            "mds: \"s3://bucket/x\": only folders of this machine are written");

  MdsWriter writer(folder / "w", {{"n", "int"}, {"t", "ndarray:int32:2"}, {"s", "str"}, {"j", "json"}});
  const auto bad = [&](const char* column, MdsValue value) {
    MdsSample sample{{"n", full({}, 1, Int64)}, {"t", zeros({2}, Int32)}, {"s", ""}, {"j", "{}"}};
    sample[column] = std::move(value);
    return error_of([&] { writer.write(sample); });
  };
  EXPECT_EQ(bad("n", full({}, 1, Int32)), "mds: column \"n\" is i32, the column i64");
  EXPECT_EQ(bad("n", zeros({2}, Int64)), "mds: column \"n\" is i64[2] on cpu, the column has numbers");
  EXPECT_EQ(bad("n", "1"), "mds: column \"n\" is no tensor, as the column's encoding wants");
  EXPECT_EQ(bad("t", zeros({3}, Int32)), "mds: column \"t\" has shape [3], the column [2]");
  EXPECT_EQ(bad("s", zeros({3}, Int32)), "mds: column \"s\" is a tensor, the column has bytes");
  EXPECT_EQ(bad("s", "\xff"), "mds: column \"s\" is not UTF-8");
  EXPECT_EQ(bad("j", "{"), "mds: column \"j\" is no JSON");
  EXPECT_EQ(bad("more", ""), "mds: a sample with more than the columns");
  EXPECT_EQ(writer.samples(), 0);
  EXPECT_EQ(error_of([&] { writer.finish(); }), "mds: no sample was written");
}

TEST(Mds, NothingIsOverwrittenAndNothingLeftBehind) {
  TemporaryFolder folder;
  const std::vector<MdsColumn> columns = {{"s", "str"}};
  fs::create_directory(folder / "full");
  write_file(folder / "full/mine", "x");
  EXPECT_EQ(error_of([&] { MdsWriter(folder / "full", columns); }),
            "mds: \"" + folder / "full" + "\" is there already, and nothing is overwritten");
  {
    MdsWriter writer(folder / "left", columns, {"", {}, 100});
    for (int i = 0; i < 9; ++i) writer.write({{"s", std::string(50, 'x')}});
    EXPECT_TRUE(fs::exists(folder / "left/shard.00000.mds"));
    EXPECT_EQ(file_error([&] { MdsReader(folder / "left"); }),
              folder / "left" + ": no folder of MDS, or not complete: it has no index.json");
  }
  EXPECT_FALSE(fs::exists(folder / "left"));
}

TEST(Mds, RefusesDamagedShards) {
  TemporaryFolder folder;
  const auto damage = [&](const char* compression, const std::function<void(std::string&)>& fn, bool hashes = false) {
    fs::remove_all(folder / "d");
    MdsWriter writer(folder / "d", {{"n", "ndarray:int16"}, {"s", "str"}},
                     {compression, hashes ? std::vector<std::string>{"xxh64"} : std::vector<std::string>{}});
    for (int16_t i = 0; i < 4; ++i) writer.write({{"n", full({2}, i, Int16)}, {"s", "four"}});
    writer.finish();
    const std::string file = folder / "d/shard.00000.mds" + (*compression ? std::string(".") + compression : "");
    change(file, fn);
    std::string error = file_error([&] {
      const MdsReader reader(folder / "d");
      for (int64_t i = 0; i < 4; ++i) reader.sample(i);
      reader.verify(0);
    });
    EXPECT_TRUE(error.starts_with(file)) << error;
    EXPECT_EQ(error.find('\n'), error.npos);
    return error.substr(std::min(error.size(), file.size()));
  };
  const auto number = [](size_t at, uint32_t value) {
    return [=](std::string& bytes) { std::memcpy(bytes.data() + 4 * at, &value, 4); };
  };
  EXPECT_EQ(damage("", number(0, 5)), ": has 5 samples, the index says 4");
  EXPECT_EQ(damage("", number(1, 8)), ": the first sample is at 8, in the header");
  EXPECT_TRUE(damage("", number(5, 100)).starts_with(": the last sample ends at 100 of "));
  EXPECT_TRUE(damage("", number(2, 1 << 30)).starts_with(": sample 0 lies from "));
  EXPECT_TRUE(damage("", number(3, 9)).starts_with(": sample 1 lies from "));
  const auto last = [](size_t back, char value) {
    return [=](std::string& bytes) { bytes[bytes.size() - back] = value; };
  };
  // A sample: 4 4 | head dim values(2 x 2) | four
  EXPECT_EQ(damage("", last(10, '\xff')), ": sample 3 column \"n\" ends within the header of an array");
  EXPECT_EQ(damage("", last(9, 3)), ": sample 3 column \"n\" is i16[3], which does not take 4 bytes");
  EXPECT_EQ(damage("", last(9, 0)), ": sample 3 column \"n\" is an array with a dimension of 0");
  EXPECT_EQ(damage("", last(18, 9)), ": sample 3 has 18 bytes, its values 21");
  EXPECT_EQ(damage("", last(1, '\xff')), ": sample 3 column \"s\" is not UTF-8");
  EXPECT_EQ(damage("", [](std::string& b) { b[b.find("column_names")] = 'x'; }),
            ": its own description is damaged, or has other columns than the index");
  for (const char* compression : {"", "zstd", "gz"}) {
    EXPECT_TRUE(damage(compression, [](std::string& b) { b.pop_back(); }).starts_with(": has "));
    EXPECT_TRUE(damage(
                    compression, [](std::string& b) { b[b.size() / 2] ^= 1; }, true)
                    .starts_with(": xxh64 is "));
  }
  for (const char* compression : {"zstd", "gz"})
    EXPECT_TRUE(damage(compression, [](std::string& b) { b[b.size() / 2] ^= 1; }).starts_with(": cannot decompress "));
}

TEST(Mds, RefusesDamagedIndexes) {
  TemporaryFolder folder;
  const auto with = [&](const std::string& from, const std::string& to) {
    fs::remove_all(folder / "d");
    MdsWriter writer(folder / "d", {{"n", "int"}, {"s", "str"}}, {"zstd", {"sha1"}});
    for (int i = 0; i < 4; ++i) writer.write({{"n", full({}, i, Int64)}, {"s", "four"}});
    writer.finish();
    const std::string file = folder / "d/index.json";
    change(file, [&](std::string& text) { replace(text, from, to); });
    std::string error = file_error([&] { MdsReader(folder / "d").sample(0); });
    EXPECT_TRUE(error.starts_with(file)) << error;
    return error.substr(std::min(error.size(), file.size()));
  };
  EXPECT_EQ(with("], \"version\": 2}", "]"), ": not JSON, or cut short");
  EXPECT_EQ(with("\"mds\"", "\"csv\""), ": shard 0 has format \"csv\", only mds is read");
  EXPECT_EQ(with("\"version\": 2, \"zip", "\"version\": 3, \"zip"), ": shard 0 is not of version 2");
  EXPECT_EQ(with("\"samples\": 4", "\"samples\": -4"), ": shard 0 has samples which is no number from 0 to 4294967295");
  EXPECT_EQ(with("\"samples\": 4", "\"samples\": 0"), ": there is no sample in it");
  EXPECT_EQ(with("\"shard.00000.mds\"", "\"../x\""),
            ": shard 0, raw_data names \"../x\", which is no file below the folder");
  EXPECT_EQ(with("\"shard.00000.mds\"", "\"/etc/passwd\""),
            ": shard 0, raw_data names \"/etc/passwd\", which is no file below the folder");
  EXPECT_EQ(with("[\"n\", \"s\"]", "[\"s\", \"s\"]"), ": shard 0 has column \"s\" twice");
  EXPECT_EQ(with("\"int\"", "\"pkl\""),
            ": shard 0 has column \"n\": \"pkl\" is refused: reading a pickle runs what is in it");
  EXPECT_EQ(with("[8, null]", "[4, null]"), ": shard 0 has column \"n\" of size 4, not 8");
  EXPECT_EQ(with("\"zip_data\": {", "\"zip_data\": null, \"x\": {"),
            ": shard 0 has compression without a compressed file, or the reverse");
  EXPECT_EQ(with("\"shards\": [", "\"shards\": [], \"x\": ["), ": the index lists no shards");
}

TEST(Mds, RefusesWhatIsNotThere) {
  TemporaryFolder folder;
  write_random(folder / "d", 3, {"zstd", {"sha1"}});
  const MdsReader reader(folder / "d");
  EXPECT_EQ(error_of([&] { reader.sample(3); }), "mds: no sample 3, " + folder / "d" + " has 3");
  EXPECT_TRUE(
      file_error([&] { reader.column("tokens"); }).starts_with(folder / "d" + ": no column \"tokens\", only: "));
  EXPECT_EQ(file_error([] { MdsReader("ftp://host/data"); }),
            "\"ftp://host/data\": is neither a folder nor https://, http:// or s3://");
  change(folder / "d/index.json", [](std::string& text) {
    for (int i = 0; i < 2; ++i) replace(text, "\"sha1\": \"", "\"md5\": \"");
  });
  const std::string shard = folder / "d/shard.00000.mds.zstd";
  EXPECT_EQ(file_error([&] { MdsReader(folder / "d").sample(0); }),
            shard + ": its hash \"md5\" cannot be checked, only: xxh3_64, xxh3_128, xxh128, xxh64, xxh32, sha1");
  MdsReader(folder / "d", {.check_hashes = false}).sample(0);
  change(folder / "d/index.json", [](std::string& text) { replace(text, "\"zstd\"", "\"br\""); });
  EXPECT_EQ(file_error([&] { MdsReader(folder / "d", {.check_hashes = false}).sample(0); }),
            shard + ": unknown compression \"br\", not of: zstd, gz");
  fs::remove(shard);
  EXPECT_EQ(file_error([&] { MdsReader(folder / "d").sample(0); }),
            "cannot open \"" + shard + "\": No such file or directory");
}

TEST(Mds, StreamsTokens) {
  TemporaryFolder folder;
  const auto pack = [&](const std::string& name, const std::string& encoding, DType dtype, int64_t length) {
    MdsWriter writer(folder / name, {{"tokens", encoding}}, {"zstd", {"xxh64"}, 300});
    for (int64_t i = 0; i < 23; ++i)
      writer.write(
          {{"tokens", cast(arange(0, static_cast<double>(length), 1, Float32) + static_cast<double>(i), dtype)}});
    writer.finish();
    return std::make_shared<const MdsReader>(folder / name);
  };
  const std::pair<const char*, DType> types[] = {{"ndarray:uint8", UInt8},
                                                 {"ndarray:uint16:7", UInt16},
                                                 {"ndarray", Int32},
                                                 {"ndarray:uint32", UInt32},
                                                 {"ndarray:int64:7", Int64}};
  const SampleOrderOptions order = {.seed = 5};
  for (const auto& [encoding, dtype] : types) {
    const auto reader = pack(std::string("d_") + encoding, encoding, dtype, 7);
    BatchSource source = streamed_tokens(reader, "tokens", 5, 4, 64, order);
    for (int64_t index : {0, 4, 5, 12, 3}) {  // five whole batches in each epoch
      const auto ids = shuffled_samples(reader->shard_sizes(), order, index / 5);
      const Tensors batch = source(index);
      ASSERT_EQ(batch[0].shape(), (Shape{4, 5}));
      for (int64_t i = 0; i < 20; ++i) {
        const int64_t first = ids[static_cast<size_t>(index % 5 * 4 + i / 5)] + i % 5;
        ASSERT_EQ(batch[0].data<int64_t>()[i], first) << encoding << index;
        ASSERT_EQ(batch[1].data<int64_t>()[i], first + 1);
      }
    }
  }
  const auto reader = pack("r", "ndarray", UInt16, 7);
  const auto refusal = [&](int64_t block, int64_t batch, int64_t vocabulary) {
    return error_of([&] {
      const BatchSource source =
          streamed_tokens(reader, "tokens", block, batch, vocabulary, {.shuffle = Shuffle::None});
      source(0);
    });
  };
  EXPECT_EQ(refusal(6, 24, 99), "streamed_tokens: 23 samples are too few for batches of 24");
  EXPECT_EQ(
      refusal(7, 2, 99),
      folder / "r" + ": sample 0 has a list of 7 u16 in column tokens, not a list of 8 tokens, as a block of 7 needs");
  EXPECT_EQ(refusal(6, 2, 7), folder / "r" + ": sample 1 has token 7, the vocabulary 7 tokens");
  EXPECT_EQ(refusal(0, 2, 7), "streamed_tokens: block and batch must be at least 1");
}

}  // namespace
}  // namespace tessera
