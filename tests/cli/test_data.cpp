// data: samples are packed, looked into, verified and learnt from.
#include "command_line.h"
#include "data/http_server.h"

namespace tessera::cli {
namespace {

std::string some_text() {
  std::string text;
  for (int i = 0; i < 800; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
  return text;
}

TEST(Data, PacksLooksAndVerifies) {
  const Folder folder;
  write_file(folder / "a.txt", some_text());
  const Finished packed = run({"data", "pack", folder / "a.txt", "--out", folder / "d", "--compression", "zstd",
                               "--hashes", "sha1,xxh64", "--size-limit", "8k"});
  EXPECT_EQ(packed.code, 0) << packed.err;
  EXPECT_EQ(packed.out, folder / "d" + ": 800 samples in 4 shards\n");
  const Finished info = run({"data", "info", folder / "d"});
  EXPECT_EQ(info.out.rfind("800 samples in 4 shards, ", 0), 0u) << info.out;
  EXPECT_NE(info.out.find(" as zstd\nhashes: sha1, xxh64\ncolumn  encoding\ntext    str\n"), std::string::npos)
      << info.out;
  EXPECT_EQ(run({"data", "verify", folder / "d"}).out, "800 samples in 4 shards are whole\n");
  EXPECT_EQ(run({"data", "pack", folder / "a.txt", "--out", folder / "d"}).err,
            "error: " + folder / "d" + " is there already, and nothing is overwritten\n");

  const std::string shard = folder / "d/shard.00001.mds.zstd";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] ^= 1;
  write_file(shard, bytes);
  const Finished bad = run({"data", "verify", folder / "d"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err.rfind("error: " + shard + ": sha1 is ", 0), 0u) << bad.err;
}

TEST(Data, PacksLinesFilesAndShards) {
  const Folder folder;
  write_file(folder / "a.jsonl",
             "{\"a\": 1, \"b\": \"x\", \"c\": 1.5, \"d\": [1]}\n{\"a\": 2, \"b\": \"y\", \"c\": 2, \"d\": null}\n");
  EXPECT_EQ(run({"data", "pack", folder / "a.jsonl", "--out", folder / "lines"}).code, 0);
  const std::string columns = "column  encoding\na       int\nb       str\nc       float64\nd       json\n";
  EXPECT_NE(run({"data", "info", folder / "lines"}).out.find(columns), std::string::npos);
  EXPECT_EQ(run({"data", "pack", folder / "lines", "--out", folder / "again", "--compression", "gz"}).code, 0);
  EXPECT_NE(run({"data", "info", folder / "again"}).out.find(columns), std::string::npos);
  fs::create_directories(folder / "images/cat");
  fs::create_directories(folder / "images/dog");
  write_file(folder / "images/cat/1.jpg", "\xff\xd8\xff one");
  write_file(folder / "images/dog/2.jpeg", "\xff\xd8\xff two");
  EXPECT_EQ(run({"data", "pack", folder / "images", "--out", folder / "i"}).code, 0);
  EXPECT_NE(run({"data", "info", folder / "i"}).out.find("class   str\nimage   jpeg\nlabel   int\nname    str\n"),
            std::string::npos);
  EXPECT_EQ(run({"data", "verify", folder / "i"}).out, "2 samples in 1 shard are whole\n");
}

// `data pack --block` makes two folders of shards in one.
TEST(Data, LooksIntoBothPartsOfATextInBlocks) {
  const Folder folder;
  write_file(folder / "a.txt", some_text());
  const std::string a = folder / "a";
  ASSERT_EQ(run({"data", "pack", a + ".txt", "--block", "8", "--out", a}).code, 0);
  for (const char* command : {"info", "verify", "read"}) {
    const Finished f = run({"data", command, a});
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.out.rfind(a + "/train:\n", 0), 0u) << f.out;
    EXPECT_NE(f.out.find(a + "/validation:\n"), std::string::npos) << f.out;
  }
  expect_error(run({"data", "pack", a, "--out", folder / "b"}), 2, "give its train/ or its validation/");
  const auto train = [&](const std::string& data, const char* block) {
    return run({"train", "gpt", "--data", data, "--block", block, "--layers", "1", "--heads", "1", "--width", "16",
                "--steps", "1", "--out", folder / "out"});
  };
  const Finished f = train(a, "16");
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("has a list of 9 "), std::string::npos) << f.err;
  EXPECT_NE(f.err.find(" in column tokens, not a list of 17 tokens, as a block of 16 needs"), std::string::npos)
      << f.err;
  expect_error(train(a + "/train", "8"), 2, "needs " + a + "/train/train/index.json, as data pack --block makes it");
  expect_error(run({"train", "gpt", "--data", a, "--block", "8", "--batch", "9999", "--out", folder / "out"}), 2,
               "are too few for batches of 9999");
  fs::remove(a + "/validation/index.json");
  EXPECT_EQ(run({"data", "verify", a}).out.find("validation"), std::string::npos);
  fs::remove(a + "/train/index.json");
  expect_error(run({"data", "info", a}), 2, "it has no index.json");
}

TEST(Data, ReadsAddresses) {
  const Folder folder;
  write_file(folder / "a.txt", some_text());
  EXPECT_EQ(run({"data", "pack", folder / "a.txt", "--out", folder / "d", "--size-limit", "8k"}).code, 0);
  HttpServer server([&](const std::string& path, int) {
    return fs::exists(folder / path) ? HttpAnswer{200, read_file(folder / path)} : HttpAnswer{404, ""};
  });
  const auto with_cache = [&](Words words, const Words& more = {}) {
    words.insert(words.end(), {"--cache", folder / "cache"});
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  EXPECT_EQ(with_cache({"data", "info", server / "d"}).out, run({"data", "info", folder / "d"}).out);
  EXPECT_FALSE(fs::exists(folder / "cache"));  // no shard was needed
  EXPECT_EQ(with_cache({"data", "verify", server / "d"}).out, "800 samples in 4 shards are whole\n");
  EXPECT_TRUE(fs::exists(folder / "cache/shards"));
  EXPECT_EQ(with_cache({"data", "read", server / "d"}).out.rfind("800 samples in ", 0), 0u);
  EXPECT_EQ(server.asked("d/shard.00001.mds"), 1);
  EXPECT_EQ(with_cache({"data", "pack", server / "d", "--out", folder / "copy", "--size-limit", "8k"}).code, 0);
  EXPECT_EQ(read_file(folder / "copy/index.json"), read_file(folder / "d/index.json"));
  EXPECT_EQ(run({"data", "pack", folder / "a.txt", "--out", "s3://bucket/d"}).err,
            "error: s3://bucket/d: only folders of this machine are written\n");

  const auto refusal = [&](const std::string& address, const Words& more = {}) {
    const Finished finished = with_cache({"data", "verify", address}, more);
    EXPECT_EQ(finished.code, 2) << finished.err;
    return finished.err;
  };
  EXPECT_EQ(refusal(server / "none"),
            "error: " + server / "none" + "/index.json: is not there: the server answers 404\n");
  EXPECT_EQ(refusal("ftp://host/d"), "error: \"ftp://host/d\": is neither a folder nor https://, http:// or s3://\n");
  EXPECT_EQ(refusal(server / "d", {"--cache-limit", "x"}), "error: --cache-limit x is no size such as 64M\n");
  fs::create_directory(folder / "mine");
  write_file(folder / "mine/file", "x");
  EXPECT_NE(
      run({"data", "verify", server / "d", "--cache", folder / "mine"}).err.find("holds files, but not of tessera"),
      std::string::npos);
  setenv("TESSERA_CURL", "libnone.so", 1);
  const std::string without = refusal(server / "d");
  unsetenv("TESSERA_CURL");
  EXPECT_EQ(without, "error: " + server / "d" +
                         "/index.json: libnone.so was not found: install libcurl, or let TESSERA_CURL name it\n");
}

TEST(Data, OrdersMixtures) {
  const auto samples = [](const Words& more) {
    Words words{"data", "order", "30", "7,3", "--batch", "100"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    std::istringstream numbers(finished.out.substr(std::min(finished.out.size(), finished.out.find(": ") + 2)));
    std::vector<int> out(2);
    for (int id; numbers >> id && id >= 0;) ++out[id >= 30];
    return out;
  };
  using Two = std::vector<int>;
  EXPECT_EQ(samples({}), (Two{30, 10}));
  EXPECT_EQ(samples({"--proportions", "1,3", "--epoch-size", "80"}), (Two{20, 60}));
  EXPECT_EQ(samples({"--repeats", "0.5,2"}), (Two{15, 20}));
  EXPECT_EQ(samples({"--choose", "0,5"}), (Two{0, 5}));
  EXPECT_EQ(run({"data", "order", "30", "10", "--repeats", "1"}).err, "error: --repeats has 1 numbers for 2 streams\n");
  EXPECT_EQ(run({"data", "order", "30", "--choose", "x"}).err, "error: --choose x: no whole numbers\n");
  EXPECT_EQ(run({"data", "order", "30", "10", "--proportions", "0,0"}).err,
            "error: streaming: the proportions are all 0\n");
}

TEST(Data, AFullDiskLeavesNothing) {
  const Folder folder;
  write_file(folder / "a.txt", some_text());
  for (const Words& how : {Words{"--block", "16"}, Words{}}) {
    const Words words = Words{"data", "pack", folder / "a.txt", "--out", folder / "d", "--size-limit", "8k"} + how;
    const Finished finished = Running(words, /*file_limit=*/5000).finish();
    EXPECT_EQ(finished.code, 1);
    EXPECT_EQ(finished.err.rfind("error: cannot write \"" + (folder / "d.packing/"), 0), 0u) << finished.err;
    EXPECT_FALSE(fs::exists(folder / "d"));
    EXPECT_FALSE(fs::exists(folder / "d.packing"));
  }
}

// A store that answers for the index alone.
struct SilentShards : testing::Test {
  Folder folder;
  HttpServer server{[this](const std::string& path, int) {
    const bool answers = path.ends_with("index.json") && fs::exists(folder / path);
    return answers ? HttpAnswer{200, read_file(folder / path)} : HttpAnswer{.silent = true};
  }};
  std::string shard = "d/shard.00000.mds";
  Words pack_it(const std::string& from) const { return {"data", "pack", from, "--out", folder / "copy"}; }
  void SetUp() override {
    write_file(folder / "a.txt", some_text());
    ASSERT_EQ(run({"data", "pack", folder / "a.txt", "--out", folder / "d"}).code, 0);
  }
  void wait_for_request() {
    while (server.asked(shard) == 0) usleep(10000);
  }
};

TEST_F(SilentShards, PackAgainWhatWasKilled) {
  const Words from_store = pack_it(server / "d") + Words{"--cache", folder / "cache"},
              again = pack_it(folder / "a.txt");
  Running killed(from_store);
  wait_for_request();
  expect_error(run(again), 2, folder / "copy.packing" + " is being written by another process");
  killed.signal_with(SIGKILL);
  EXPECT_EQ(killed.finish().code, 128 + SIGKILL);
  EXPECT_FALSE(fs::exists(folder / "copy"));
  EXPECT_TRUE(fs::exists(folder / "copy.packing"));
  write_file(folder / "copy.packing/mine", "x");
  expect_error(run(again), 2, folder / "copy.packing/mine" + ": is not of a pack, and nothing is overwritten");
  fs::remove(folder / "copy.packing/mine");
  write_file(folder / "copy.packing/shard.00007.mds", "x");
  EXPECT_EQ(run(again).code, 0);
  EXPECT_FALSE(fs::exists(folder / "copy.packing"));
  EXPECT_FALSE(fs::exists(folder / "copy/shard.00007.mds"));
  EXPECT_EQ(run({"data", "verify", folder / "copy"}).code, 0);
}

TEST_F(SilentShards, AreNotWaitedForAfterASignal) {
  Running running(pack_it(server / "d") + Words{"--cache", folder / "cache"});
  wait_for_request();
  running.signal_with(SIGINT);
  const Finished finished = running.finish();
  EXPECT_EQ(finished.code, 128 + SIGINT);
  EXPECT_EQ(finished.err, "interrupted: nothing is left of " + folder / "copy" + "\n");
  EXPECT_FALSE(fs::exists(folder / "copy"));
  EXPECT_FALSE(fs::exists(folder / "copy.packing"));
}

TEST_F(SilentShards, AreNamedAfterAShortWhile) {
  const Finished finished =
      run({"data", "verify", server / "d", "--cache", folder / "cache", "--stall", "1", "--deadline", "3"});
  EXPECT_EQ(finished.code, 2);
  const std::string note = "note: waiting for " + server / shard + ": nothing came for 1 s; attempt 2 of 5 follows\n";
  EXPECT_EQ(finished.err.rfind(note, 0), 0u) << finished.err;
  EXPECT_NE(finished.err.find("\nerror: " + server / shard + ": "), std::string::npos) << finished.err;
  expect_error(run({"data", "verify", server / "d", "--stall", "0"}), 2, "--stall");
}

TEST(Data, RefusesBadInput) {
  const Folder folder;
  write_file(folder / "a.txt", "a\n");
  write_file(folder / "a.jsonl", "{\"a\": 1}\n{\"a\": 1.5}\n");
  fs::create_directory(folder / "empty");
  const auto refusal = [&](const std::string& input, const Words& more = {}) {
    Words words{"data", "pack", folder / input, "--out", folder / "d"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 2);
    EXPECT_FALSE(fs::exists(folder / "d"));
    return finished.err;
  };
  EXPECT_EQ(refusal("none.txt"), "error: cannot open \"" + folder / "none.txt" + "\": No such file or directory\n");
  EXPECT_EQ(refusal("empty"), "error: " + folder / "empty" + ": no image (.jpg, .png) and no array (.npy) is in it\n");
  EXPECT_EQ(refusal("a.jsonl"),
            "error: " + folder / "a.jsonl" + ": line 2 has no int for the column \"a\" of the first line\n");
  EXPECT_EQ(refusal("a.txt", {"--compression", "lz"}), "error: unknown compression \"lz\", not of: zstd, gz\n");
  EXPECT_EQ(refusal("a.txt", {"--hashes", "md5"}),
            "error: unknown hash \"md5\", not of: xxh3_64, xxh3_128, xxh128, xxh64, xxh32, sha1\n");
  EXPECT_EQ(refusal("a.txt", {"--size-limit", "8x"}), "error: --size-limit 8x is no size such as 64M\n");
  EXPECT_EQ(run({"data", "order", "10,20", "--canonical-nodes", "4", "--nodes", "3"}).err,
            "error: sample_order: neither of 4 canonical nodes and 3 nodes divides the other\n");
  EXPECT_EQ(run({"data", "order", "3,2", "--shuffle", "none", "--ranks", "2", "--batch", "2"}).out,
            "node 0 rank 0 worker 0 batch 0: 0 2\nnode 0 rank 0 worker 0 batch 1: 4 -1\n"
            "node 0 rank 1 worker 0 batch 0: 1 3\nnode 0 rank 1 worker 0 batch 1: 3 -1\n");
}

// The run that was stopped comes to the same weights as the one that was not, on another number of ranks too.
TEST(Data, TrainsOnStreamedTokens) {
  const Folder folder;
  write_file(folder / "a.txt", some_text());
  EXPECT_EQ(run({"data", "pack", folder / "a.txt", "--block", "16", "--out", folder / "d", "--compression", "zstd",
                 "--size-limit", "4k"})
                .code,
            0);
  const auto train = [&](const std::string& out, const Words& before, const Words& more) {
    Words words = before;
    for (const char* word :
         {"train",   "gpt", "--steps", "8", "--layers",       "1", "--heads",         "2", "--width",   "16",
          "--block", "16",  "--batch", "4", "--accumulation", "2", "--eval-interval", "0", "--threads", "1"})
      words.push_back(word);
    words.insert(words.end(), {"--data", folder / "d", "--out", folder / out});
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Finished whole = train("whole", {}, {});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(train("parts", {}, {"--stop-after", "3"}).code, 0);
  const Finished rest = train("parts", {"launch", "--procs", "2", "--", TESSERA_COMMAND}, {"--resume"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  const auto loss = [](const std::string& out) {
    return out.substr(std::min(out.size(), out.rfind("validation loss ")), 22);
  };
  EXPECT_NE(loss(whole.out), "") << whole.out;
  EXPECT_EQ(loss(whole.out), loss(rest.out)) << rest.out;
  EXPECT_EQ(train("x", {}, {"--text", folder / "a.txt"}).code, 2);
  fs::remove(folder / "d/vocabulary.txt");
  EXPECT_EQ(train("x", {}, {}).err,
            "error: " + folder / "d" + ": no vocabulary.txt says how many tokens there are: give --vocab\n");
  const Finished few = train("x", {}, {"--vocab", "2"});
  EXPECT_EQ(few.code, 2);
  EXPECT_NE(few.err.find(" the vocabulary 2 tokens"), std::string::npos) << few.err;
}

struct Mixtures : testing::Test {
  Folder folder;
  std::string a = folder / "a", b = folder / "b";
  void SetUp() override {
    write_file(a + ".txt", some_text() + "!");
    std::string other;
    for (int i = 0; i < 300; ++i) other += "number " + std::to_string(i * 7919 % 1000) + ", and more\n";
    write_file(b + ".txt", other);
    write_file(folder / "characters", some_text() + other + "!");
    ASSERT_EQ(pack(a).code, 0);
    ASSERT_EQ(pack(b).code, 0);
  }
  Finished pack(const std::string& to) const {
    return run({"data", "pack", to + ".txt", "--block", "16", "--out", to, "--size-limit", "4k", "--vocabulary",
                folder / "characters"});
  }
  Finished train(const Words& more, const Words& before = {}) const {
    return run(before + Words{"train",           "gpt",
                              "--steps",         "12",
                              "--layers",        "1",
                              "--heads",         "2",
                              "--width",         "16",
                              "--block",         "16",
                              "--batch",         "8",
                              "--accumulation",  "4",
                              "--eval-interval", "0",
                              "--threads",       "1",
                              "--json",          folder / "json"} +
               more);
  }
  std::vector<double> losses() const {
    std::vector<double> out;
    const auto result = nlohmann::json::parse(read_file(folder / "json"));
    for (const auto& step : result["steps"]) out.push_back(step["loss"]);
    return out;
  }
};

TEST_F(Mixtures, AreTrainedOnByAnyNumberOfRanks) {
  const Words mixture{"--data", a, b, "--repeats", "0.25,1.5"};
  ASSERT_EQ(train(mixture + Words{"--out", folder / "whole"}).code, 0);
  const std::vector<double> whole = losses();
  ASSERT_EQ(train(mixture + Words{"--out", folder / "parts", "--stop-after", "5"}).code, 0);
  const Words more = mixture + Words{"--out", folder / "parts", "--resume"};
  const Finished rest = train(more, {"launch", "--procs", "4", "--", TESSERA_COMMAND});
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(losses(), whole);
  EXPECT_EQ(whole.size(), 12u);

  // All of one stream and nothing of the other is that stream alone.
  const Finished info = run({"data", "info", b + "/train"});
  const std::string all = std::to_string(std::atoi(info.out.c_str()));
  ASSERT_EQ(train({"--data", a, b, "--choose", "0," + all, "--out", folder / "chosen"}).code, 0);
  const std::vector<double> chosen = losses();
  ASSERT_EQ(train({"--data", b, "--out", folder / "alone"}).code, 0);
  EXPECT_EQ(losses(), chosen);
  EXPECT_NE(losses(), whole);
}

TEST_F(Mixtures, ThatCannotBeAreOneLine) {
  const Words out{"--out", folder / "out"};
  ASSERT_EQ(train(Words{"--data", a, b, "--proportions", "1,3"} + out).code, 0);
  const auto refused = [&](const Words& words, const std::string& why) { expect_error(train(words + out), 2, why); };
  refused({"--data", a, b, "--proportions", "1,2", "--resume"}, "it was trained on another text");
  refused({"--data", b, a, "--proportions", "1,3", "--resume"}, "it was trained on another text");
  refused({"--data", a, b, "--proportions", "1"}, "--proportions has 1 numbers for 2 streams");
  refused({"--data", a, b, "--choose", "1,0.5"}, "--choose 1,0.5: no whole numbers");
  refused({"--data", a, b, "--proportions", "0,0"}, "streaming: the proportions are all 0");
  refused({"--data", a, b, "--repeats", "1,-1"}, "streaming: ");
  refused({"--data", a, b, "--repeats", "1,nan"}, "streaming: ");
  expect_error(train(Words{"--data", a, b, "--choose", "0,0"} + out), 1, "streaming: an epoch without samples");
  refused({"--data", a, b, "--repeats", "1,1", "--epoch-size", "100"}, "streaming: an epoch's size is for streams");
  refused({"--data", a, b, "--proportions", "1,1", "--repeats", "1,1"}, "streaming: ");
  refused({"--text", a + ".txt", "--proportions", "1"}, "are of --data");
  refused({"--data", a, folder / "none"}, "none/train");
  refused({"--data", folder / "none"}, "none/train/index.json");
  EXPECT_EQ(run({"data", "pack", a + ".txt", "--block", "16", "--out", folder / "c"}).code, 0);
  refused({"--data", a, folder / "c"}, "c/vocabulary.txt: has other characters than " + a + "/vocabulary.txt");
  write_file(folder / "c.txt", some_text() + "?");
  expect_error(pack(folder / "d"), 2, "cannot open");
  fs::copy_file(folder / "c.txt", folder / "d.txt");
  expect_error(pack(folder / "d"), 2, folder / "d.txt" + ": ");
  EXPECT_FALSE(fs::exists(folder / "d"));
  expect_error(run({"data", "pack", a + ".txt", "--out", folder / "d", "--vocabulary", a + ".txt"}), 2,
               "--vocabulary is of --block");
}

}  // namespace
}  // namespace tessera::cli
