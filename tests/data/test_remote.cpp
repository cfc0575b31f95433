#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <thread>

#include "data/download.h"
#include "data/http_server.h"
#include "data/store.h"
#include "io/io_check.h"
#include "tessera/io.h"
#include "tessera/mds.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

Store store_of(const std::string& address, std::map<std::string, std::string> variables = {}) {
  return parse_store(address, [&](const char* name) { return variables[name]; });
}

TEST(Store, IsWhereAnAddressSays) {
  EXPECT_EQ(store_of("https://host/a b/c%20d/").url_of("x y%.mds"), "https://host/a%20b/c%20d/x%20y%25.mds");
  EXPECT_EQ(store_of("http://127.0.0.1:8000").url_of("a/b"), "http://127.0.0.1:8000/a/b");
  EXPECT_EQ(store_of("s3://bucket/a b+c").url_of("i"), "https://bucket.s3.us-east-1.amazonaws.com/a%20b%2Bc/i");
  EXPECT_EQ(store_of("s3://bucket", {{"AWS_DEFAULT_REGION", "eu-west-3"}}).url_of("i"),
            "https://bucket.s3.eu-west-3.amazonaws.com/i");
  EXPECT_EQ(store_of("s3://a.bucket/d").url_of("i"), "https://s3.us-east-1.amazonaws.com/a.bucket/d/i");
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"})
    EXPECT_EQ(store_of("s3://bucket/d/", {{name, "http://host:9000/"}}).url_of("i"), "http://host:9000/bucket/d/i");
  const Store signed_one =
      store_of("s3://bucket", {{"AWS_ACCESS_KEY_ID", "k"}, {"AWS_SECRET_ACCESS_KEY", "s"}, {"AWS_SESSION_TOKEN", "t"}});
  EXPECT_EQ(signed_one.key + signed_one.secret + signed_one.session, "kst");
  EXPECT_TRUE(signed_one.is_s3());
  EXPECT_FALSE(store_of("http://h").is_s3());
}

TEST(Store, RefusesWhatIsNoAddress) {
  const auto refusal = [](const std::string& address, std::map<std::string, std::string> variables = {}) {
    return file_error([&] { store_of(address, variables); });
  };
  EXPECT_EQ(refusal("ftp://h/x"), "\"ftp://h/x\": is neither a folder nor https://, http:// or s3://");
  EXPECT_EQ(refusal("http://"), "\"http://\": has no host");
  EXPECT_EQ(refusal("http:///x"), "\"http:///x\": has no host");
  EXPECT_EQ(refusal("http://h/x?y=1"), "\"http://h/x?y=1\": an address of a folder has no '?' and no '#'");
  EXPECT_EQ(refusal("https://me:secret@h/x"), "\"https\": an address has no name or password");
  EXPECT_EQ(refusal("http://h\n/x"), "\"http://h\\x0a/x\": an address has no control characters");
  EXPECT_EQ(refusal("s3://"), "\"s3://\": has no bucket: s3://BUCKET/PATH");
  EXPECT_EQ(refusal("s3://b?x/y"), "\"s3://b?x/y\": has no bucket: s3://BUCKET/PATH");
  EXPECT_EQ(refusal("s3://bucket", {{"AWS_ACCESS_KEY_ID", "k"}}),
            "\"s3://bucket\": AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY come together");
  EXPECT_EQ(refusal("s3://bucket", {{"AWS_REGION", "x/y"}}), "\"s3://bucket\": AWS_REGION \"x/y\" is no region");
  EXPECT_EQ(refusal("s3://bucket", {{"AWS_ENDPOINT_URL", "host"}}),
            "\"host\": the endpoint of S3 begins with https:// or http://");
}

TEST(Store, ReadsCodesOfErrors) {
  EXPECT_EQ(s3_error_code("<?xml?><Error><Code>NoSuchKey</Code><Message>x</Message></Error>"), "NoSuchKey");
  for (const char* body : {"", "<Code>", "<Code></Code>", "<Code>a b</Code>", "NoSuchKey"})
    EXPECT_EQ(s3_error_code(body), "");
}

constexpr int64_t kSamples = 90;

// A folder of shards behind a server, and how that answers.
class Remote : public testing::Test {
 protected:
  void pack(const std::string& compression, std::vector<std::string> hashes = {"xxh64"}) {
    MdsWriter writer(folder_ / "data", {{"n", "int"}, {"s", "str"}}, {compression, std::move(hashes), 1200});
    for (int64_t i = 0; i < kSamples; ++i)
      writer.write(
          {{"n", full({}, static_cast<double>(i), Int64)}, {"s", std::string(90, static_cast<char>('a' + i % 26))}});
    writer.finish();
  }
  HttpAnswer file(const std::string& path) const {
    const std::string local = folder_ / path;
    if (!fs::is_regular_file(local)) return {404, "none"};
    return {200, read_file(local)};
  }
  MdsReaderOptions options() const {
    return {.remote = {.cache = folder_ / "cache", .attempts = 3, .stall = 1, .deadline = 20}};
  }
  static void expect_all(const MdsReader& reader) {
    ASSERT_EQ(reader.size(), kSamples);
    for (int64_t i = kSamples - 1; i >= 0; --i) {
      const MdsSample sample = reader.sample(i);
      ASSERT_EQ(std::get<Tensor>(sample.at("n")).item<int64_t>(), i);
      ASSERT_EQ(std::get<std::string>(sample.at("s")), std::string(90, static_cast<char>('a' + i % 26)));
    }
  }
  // Bytes of shards that are kept; what is on its way, or was left so, counts as a fault.
  uint64_t kept() const {
    uint64_t out = 0;
    if (fs::exists(folder_ / "cache/shards"))
      for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache/shards")) {
        EXPECT_NE(entry.path().extension(), ".part") << entry.path();
        if (entry.is_regular_file()) out += entry.file_size();
      }
    return out;
  }
  TemporaryFolder folder_;
};

constexpr const char* kSecond = "data/shard.00001.mds";

TEST_F(Remote, ReadsWhatAFolderHas) {
  for (const char* compression : {"", "zstd", "gz"}) {
    fs::remove_all(folder_ / "data");
    pack(compression);
    HttpServer server([&](auto& path, int) { return file(path); });
    const MdsReader reader(server / "data/", options());
    EXPECT_EQ(reader.folder(), server / "data");
    EXPECT_TRUE(reader.is_remote());
    expect_all(reader);
    const int64_t shards = static_cast<int64_t>(reader.shards().size());
    for (int64_t i = 0; i < shards; ++i) reader.verify(i);
    expect_all(MdsReader(server / "data", options()));
    EXPECT_GT(shards, 4);
    for (const MdsShardInfo& shard : reader.shards()) EXPECT_EQ(server.asked("data/" + shard.file), 1) << shard.file;
  }
  EXPECT_GT(kept(), 1000u);
}

TEST_F(Remote, GoesOnWhereAServerStumbles) {
  pack("");
  const std::vector<std::function<HttpAnswer(HttpAnswer)>> faults = {
      [](HttpAnswer) {
        return HttpAnswer{500, "x"};
      },
      [](HttpAnswer) {
        return HttpAnswer{429, "x"};
      },
      [](HttpAnswer a) { return a.sent = 0, a; },
      [](HttpAnswer a) { return a.sent = a.body.size() / 2, a; },
      [](HttpAnswer a) { return a.body.pop_back(), a; },
      [](HttpAnswer a) { return a.body += 'x', a; },
      [](HttpAnswer a) { return a.body[a.body.size() / 2] ^= 1, a; },
      [](HttpAnswer) { return HttpAnswer{.silent = true}; }};
  for (size_t i = 0; i < faults.size(); ++i) {
    fs::remove_all(folder_ / "cache");
    HttpServer server(
        [&](auto& path, int before) { return path == kSecond && before == 0 ? faults[i](file(path)) : file(path); });
    expect_all(MdsReader(server / "data", options()));
    EXPECT_EQ(server.asked(kSecond), 2) << i;
    kept();
  }
  HttpServer moved([&](auto& path, int) {
    if (path.starts_with("old/"))
      return HttpAnswer{302, "", 0, false, {}, "Location: /data/" + path.substr(4) + "\r\n"};
    return file(path);
  });
  expect_all(MdsReader(moved / "old", options()));
}

TEST_F(Remote, SaysInOneLineWhatDoesNotCome) {
  pack("");
  const auto refusal = [&](const std::function<HttpAnswer(HttpAnswer)>& fault, MdsReaderOptions o) {
    fs::remove_all(folder_ / "cache");
    HttpServer server([&](auto& path, int) { return path == kSecond ? fault(file(path)) : file(path); });
    const auto begin = Clock::now();
    std::string error = error_of([&] { expect_all(MdsReader(server / "data", o)); });
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15)) << error;
    EXPECT_EQ(error.find('\n'), error.npos);
    const std::string name = server / kSecond;
    EXPECT_TRUE(error.starts_with(name + ": ")) << error;
    kept();
    return error.substr(std::min(error.size(), name.size() + 2));
  };
  MdsReaderOptions o = options();
  o.remote.attempts = 2;
  EXPECT_EQ(refusal([](HttpAnswer) { return HttpAnswer{500, "x"}; }, o), "the server answers 500, in attempt 2");
  EXPECT_EQ(refusal(
                [](HttpAnswer) {
                  return HttpAnswer{403, "<Code>AccessDenied</Code>"};
                },
                o),
            "the server answers 403 (AccessDenied)");
  EXPECT_EQ(refusal([](HttpAnswer) { return HttpAnswer{404, "x"}; }, o), "is not there: the server answers 404");
  const std::string size = std::to_string(fs::file_size(folder_ / kSecond));
  EXPECT_EQ(refusal([](HttpAnswer a) { return a.body.resize(10), a; }, o),
            "has 10 bytes, the index says " + size + ", twice");
  EXPECT_EQ(refusal([](HttpAnswer a) { return a.body += 'x', a; }, o),
            "more than the " + size + " bytes that the index says, twice");
  const std::string altered = refusal([](HttpAnswer a) { return a.body[a.body.size() / 2] ^= 1, a; }, o);
  EXPECT_TRUE(altered.starts_with("xxh64 is ") && altered.ends_with(", twice")) << altered;
  EXPECT_NE(refusal([](HttpAnswer a) { return a.sent = 20, a; }, o).find(", in attempt 2"), std::string::npos);
  EXPECT_EQ(refusal([](HttpAnswer) { return HttpAnswer{.silent = true}; }, o), "nothing came for 1 s, in attempt 2");
  o.remote.attempts = 100;
  o.remote.deadline = 3;
  EXPECT_NE(refusal(
                [](HttpAnswer) {
                  return HttpAnswer{500, "x"};
                },
                o)
                .find("the server answers 500; not there after 3 s and attempt "),
            std::string::npos);
  const auto slow = [](HttpAnswer a) { return a.pause = std::chrono::milliseconds(100), a; };
  EXPECT_EQ(refusal(slow, o), "no end of it; not there after 3 s and attempt 1");

  std::string gone;
  {
    HttpServer server([&](auto& path, int) { return file(path); });
    gone = server / "data";
  }
  o.remote.attempts = 1;
  EXPECT_TRUE(file_error([&] { MdsReader(gone, o); }).starts_with(gone + "/index.json: Failed to connect"));
  HttpServer bare([](auto&, int) { return HttpAnswer{200, "{"}; });
  EXPECT_EQ(file_error([&] { MdsReader(bare / "data", o); }), bare / "data/index.json" + ": not JSON, or cut short");
  o.remote.attempts = 0;
  EXPECT_EQ(error_of([&] { MdsReader(bare / "data", o); }),
            bare / "data" + ": attempts, seconds and the cache's limit must be above 0");
}

TEST_F(Remote, KeepsWithinTheDisksLimit) {
  pack("", {"sha1"});
  HttpServer server([&](auto& path, int) { return file(path); });
  MdsReaderOptions o = options();
  o.remote.cache_limit = 4000;  // three shards
  const MdsReader reader(server / "data", o);
  expect_all(reader);
  EXPECT_LE(kept(), 4000u);
  EXPECT_GT(kept(), 2000u);
  const MdsReader other(server / "data/", o);  // finds what is there
  const int before = server.asked("data/shard.00000.mds");
  other.sample(0);  // the one read last
  EXPECT_EQ(server.asked("data/shard.00000.mds"), before);
  o.remote.cache_limit = 100;
  EXPECT_NE(
      error_of([&] { MdsReader(server / "data", o).sample(89); }).find("a cache of 100 bytes is too small for shard."),
      std::string::npos);
  kept();
}

TEST_F(Remote, SaysThatTheDiskIsFull) {
  pack("");
  HttpServer server([&](auto& path, int) { return file(path); });
  const MdsReader reader(server / "data", options());
  struct rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  struct rlimit small = old;
  small.rlim_cur = 700;
  void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { reader.sample(0); });
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(error.starts_with("cannot keep \"" + folder_ / "cache/shards/")) << error;
  EXPECT_TRUE(error.ends_with(": File too large")) << error;
  EXPECT_EQ(kept(), 0u);
  expect_all(reader);  // once there is room again
}

TEST_F(Remote, MendsItsOwnDisk) {
  pack("zstd");
  HttpServer server([&](auto& path, int) { return file(path); });
  expect_all(MdsReader(server / "data", options()));
  std::string some;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache/shards"))
    if (entry.path().filename() == "shard.00001.mds.zstd") some = entry.path().string();
  std::string bytes = read_file(some);
  bytes[bytes.size() / 2] ^= 1;
  write_file(some, bytes);
  write_file(some + "x.part", "left by a process that was killed");
  expect_all(MdsReader(server / "data", options()));
  EXPECT_EQ(server.asked(std::string(kSecond) + ".zstd"), 2);
  EXPECT_EQ(server.asked("data/shard.00000.mds.zstd"), 1);
  kept();
}

TEST_F(Remote, StatesOfADataSetAreKeptApart) {
  pack("");
  HttpServer server([&](auto& path, int) { return file(path); });
  const MdsReader before(server / "data", options());
  expect_all(before);
  fs::remove_all(folder_ / "data");
  MdsWriter writer(folder_ / "data", {{"n", "int"}, {"s", "str"}});
  writer.write({{"n", full({}, 7, Int64)}, {"s", "new"}});
  writer.finish();
  EXPECT_EQ(MdsReader(server / "data", options()).size(), 1);
  EXPECT_EQ(std::get<std::string>(MdsReader(server / "data", options()).sample(0).at("s")), "new");
  expect_all(before);
}

TEST_F(Remote, ReadersShareEachDownload) {
  pack("zstd");
  HttpServer server([&](auto& path, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return file(path);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { expect_all(MdsReader(server / "data", options())); });
  for (std::thread& thread : threads) thread.join();
  for (const MdsShardInfo& shard : MdsReader(server / "data", options()).shards())
    EXPECT_EQ(server.asked("data/" + shard.file), 1) << shard.file;
  kept();
}

TEST_F(Remote, DownloadsAhead) {
  pack("");
  HttpServer server([&](auto& path, int) { return path == kSecond ? HttpAnswer{.silent = true} : file(path); });
  const auto begin = Clock::now();
  {
    MdsReaderOptions o = options();
    o.remote.stall = 60;
    const MdsReader reader(server / "data", o);
    std::vector<int64_t> all(static_cast<size_t>(kSamples));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    reader.prefetch(all);
    const std::string last = "data/" + reader.shards().back().file;
    while (server.asked(last) == 0 && Clock::now() - begin < std::chrono::seconds(10))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(server.asked(last), 1);
    EXPECT_EQ(std::get<Tensor>(reader.sample(kSamples - 1).at("n")).item<int64_t>(), kSamples - 1);
    EXPECT_EQ(server.asked(last), 1);
  }  // does not wait for the one that never comes
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(12));
  kept();
}

TEST_F(Remote, SaysWhoIsWaitedFor) {
  pack("");
  HttpServer server([&](auto& path, int before) {
    if (path == kSecond && before == 0) return HttpAnswer{.silent = true};
    return path == kSecond && before == 1 ? HttpAnswer{500, "x"} : file(path);
  });
  MdsReaderOptions o = options();
  std::vector<std::string> lines;
  o.remote.on_wait = [&](const std::string& line) { lines.push_back(line); };
  expect_all(MdsReader(server / "data", o));
  const std::string name = "waiting for " + server / kSecond;
  EXPECT_EQ(lines, (std::vector<std::string>{name + ": nothing came for 1 s; attempt 2 of 3 follows",
                                             name + ": the server answers 500; attempt 3 of 3 follows"}));
}

TEST_F(Remote, EndsWhereNobodyWaitsAnyMore) {
  pack("");
  HttpServer server([&](auto& path, int) { return path == kSecond ? HttpAnswer{.silent = true} : file(path); });
  MdsReaderOptions o = options();
  o.remote.stall = 60;
  o.remote.deadline = 60;
  const MdsReader reader(server / "data", o);
  const int64_t of_second = reader.shard_sizes()[0];
  const auto begin = Clock::now();
  {
    const DownloadsEnd outer([&] { return Clock::now() - begin > std::chrono::milliseconds(200); });
    const DownloadsEnd inner([] { return false; });
    EXPECT_EQ(file_error([&] { reader.sample(of_second); }), server / kSecond + ": the download was ended");
  }
  EXPECT_EQ(std::get<Tensor>(reader.sample(0).at("n")).item<int64_t>(), 0);
  {
    DataLoader loader([&](int64_t) { return Tensors{std::get<Tensor>(reader.sample(of_second).at("n"))}; });
    while (server.asked(kSecond) < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }  // its thread waits for the shard, and is not waited for
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  kept();
}

TEST_F(Remote, ReadsFilesOfEitherKind) {
  fs::create_directory(folder_ / "d");
  write_file(folder_ / "d/a.txt", "text");
  HttpServer server([&](auto& path, int) { return file(path); });
  for (const std::string& at : {folder_.path() + "/d/", server / "d/"}) {
    EXPECT_EQ(read_stored_file(at + "a.txt"), "text");
    EXPECT_EQ(find_stored_file(at + "a.txt"), "text");
    EXPECT_EQ(find_stored_file(at + "b.txt"), std::nullopt);
    EXPECT_NE(file_error([&] { read_stored_file(at + "b.txt"); }).find("b.txt"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
