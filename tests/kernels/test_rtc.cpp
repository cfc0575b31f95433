// What is compiled at run time: the cache on disk, who compiles, and what is launched; the compiler and the card are
// made up. tests/gpu compiles with the vendors'.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "core/fake_runtime.h"
#include "core/util/disk_cache.h"
#include "io/temporary_folder.h"
#include "kernels/gpu/rtc/rtc.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class OwnFolder : public testing::Test {
 protected:
  TemporaryFolder own;
  fs::path folder = own.path();
};

std::string random_bytes(std::mt19937& random, size_t count) {
  std::string text(count, 0);
  for (char& c : text) c = static_cast<char>(random());
  return text;
}
std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// ---- the cache on disk

using CacheOnDisk = OwnFolder;

TEST(CacheKey, DependsOnEveryPart) {
  const std::string key = cache_key({"ab", "c"});
  EXPECT_EQ(key.size(), 32u);
  EXPECT_EQ(key.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(key, cache_key({"ab", "c"}));
  EXPECT_NE(key, cache_key({"a", "bc"}));
  EXPECT_NE(key, cache_key({"ab", "c", ""}));
  EXPECT_NE(key.substr(16), cache_key({"ac", "c"}).substr(16));
  EXPECT_NE(key.substr(0, 16), cache_key({"ac", "c"}).substr(0, 16));
}

TEST_F(CacheOnDisk, GivesBackWhatItKept) {
  std::mt19937 random(1);
  const DiskCache cache(folder / "new", "kernels", 1 << 20);
  for (size_t bytes : {0, 1, 7, 8, 1021, 70000}) {
    const std::string content = random_bytes(random, bytes), key = cache_key({content});
    EXPECT_EQ(cache.find(key), std::nullopt);
    cache.keep(key, content);
    EXPECT_EQ(cache.find(key), content);
  }
  EXPECT_TRUE(fs::exists(folder / "new" / cache_mark));
}

TEST_F(CacheOnDisk, TrustsNoDamagedFile) {
  std::mt19937 random(2);
  const std::string content = random_bytes(random, 301), key = cache_key({"x"});
  const DiskCache cache(folder, "kernels", 1 << 20);
  const fs::path path = folder / "kernels" / key;
  cache.keep(key, content);
  const std::string file = read(path);
  const auto refused = [&](const std::string& damaged) {
    write(path, damaged);
    EXPECT_EQ(cache.find(key), std::nullopt);
    EXPECT_FALSE(fs::exists(path));  // so that a good one can take its place
  };
  for (size_t at = 0; at < file.size(); ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    refused(damaged);
  }
  for (size_t length : {0, 1, 40, 55, 56, 200, 356}) refused(file.substr(0, length));
  refused(file + '\0');
  refused(encode_cache_entry(cache_key({"y"}), content));  // of another key
  cache.keep(key, content);
  EXPECT_EQ(cache.find(key), content);
}

TEST_F(CacheOnDisk, WhatWasNotUsedForLongestLeaves) {
  const DiskCache cache(folder, "kernels", 5000);
  const auto key = [](int i) { return cache_key({std::to_string(i)}); };
  const auto hour = std::chrono::hours(1);
  for (int i = 0; i < 4; ++i) {
    cache.keep(key(i), std::string(1000, 'a'));
    fs::last_write_time(folder / "kernels" / key(i), fs::file_time_type::clock::now() - (9 - i) * hour);
  }
  EXPECT_TRUE(cache.find(key(0)));  // the oldest, but used now
  cache.keep(key(4), std::string(1000, 'a'));
  EXPECT_FALSE(fs::exists(folder / "kernels" / key(1)));
  for (int i : {0, 2, 3, 4}) EXPECT_TRUE(cache.find(key(i))) << i;
  cache.keep(key(5), std::string(6000, 'a'));  // never fits
  EXPECT_FALSE(cache.find(key(5)));
  EXPECT_TRUE(cache.find(key(0)));
  const fs::path left = folder / "kernels" / (key(6) + ".17.0.tmp"),
                 fresh = folder / "kernels" / (key(6) + ".18.0.tmp");
  write(left, "by a process that died");
  write(fresh, "by a process that lives");
  fs::last_write_time(left, fs::file_time_type::clock::now() - 2 * hour);
  cache.keep(key(7), "");
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(fresh));
}

TEST_F(CacheOnDisk, TakesOverNoFolderOfOthers) {
  write(folder / "precious", "data");
  const DiskCache cache(folder, "kernels", 5000), nowhere({}, "kernels", 5000),
      below_file(folder / "precious" / "x", "kernels", 5000);
  const std::string key = cache_key({"x"});
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    cache.keep(key, "text");
    nowhere.keep(key, "text");
    below_file.keep(key, "text");
    EXPECT_FALSE(cache.find(key) || nowhere.find(key) || below_file.find(key));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: compiled code is not kept on disk: " + folder.string() + ": holds files, but not of tessera\n");
  EXPECT_FALSE(fs::exists(folder / cache_mark));
}

TEST_F(CacheOnDisk, ProcessesShareIt) {
  constexpr int processes = 6, rounds = 150, keys = 8;
  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p) {
    const pid_t child = fork();
    if (child == 0) {  // so small a limit that they delete each other's entries all the time
      const DiskCache cache(folder / "shared", "kernels", 3000);
      std::mt19937 random(p);
      int wrong = 0;
      for (int i = 0; i < rounds; ++i) {
        const std::string name = std::to_string(random() % keys), key = cache_key({name});
        const std::string content(400 + name[0], name[0]);
        if (const auto found = cache.find(key)) wrong += *found != content;
        else cache.keep(key, content);
      }
      _exit(wrong);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  uintmax_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder / "shared/kernels")) {
    EXPECT_NE(entry.path().extension(), ".tmp");
    total += entry.file_size();
  }
  EXPECT_LE(total, 3000u + processes * 600u);
}

// ---- programs

class CountingCompiler : public gpu::Compiler {
 public:
  std::string name() const override { return "made up " + version; }
  std::string compile(const std::string& source, const std::string&, const std::vector<std::string>&) override {
    ++compiled;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (source == "wrong") throw gpu::CompileError("program(1): no", "program(1): error: no");
    return source;
  }
  std::string version = "1";
  std::atomic<int> compiled{0};
};

class RunTimeCompilation : public OwnFolder {
 protected:
  RunTimeCompilation() : runtime(*new FakeRuntime) {
    setenv("TESSERA_CACHE_DIR", (folder / "cache").c_str(), 1);
    gpu::install(DeviceType::HIP, plugin_of(runtime));
    gpu::install(DeviceType::HIP, &compiler);
  }
  ~RunTimeCompilation() override {
    gpu::install(DeviceType::HIP, static_cast<gpu::Compiler*>(nullptr));
    gpu::install(DeviceType::HIP, static_cast<const gpu::Plugin*>(nullptr));
    unsetenv("TESSERA_CACHE_DIR");
  }
  std::string code(const gpu::Program& program, const std::string& architecture = "gfx90a") {
    return gpu::machine_code(program, DeviceType::HIP, architecture);
  }
  FakeRuntime& runtime;
  CountingCompiler compiler;
};

TEST_F(RunTimeCompilation, CodeIsKeptByAllThatItDependsOn) {
  const gpu::Program program{"add", {"add"}};
  EXPECT_EQ(code(program), "add");
  EXPECT_EQ(code(program), "add");
  EXPECT_EQ(compiler.compiled, 1);
  code({"add ", {"add"}});
  code({"add", {"add"}, {"-DX"}});
  code(program, "gfx942");
  compiler.version = "2";
  code(program);
  EXPECT_EQ(compiler.compiled, 5);
  fs::remove_all(folder / "cache");  // as `tessera cache clear` does, at any time
  code(program);
  code(program);
  EXPECT_EQ(compiler.compiled, 6);
}

TEST_F(RunTimeCompilation, DamagedCodeIsCompiledAgain) {
  const gpu::Program program{"add", {"add"}};
  code(program);
  for (const auto& entry : fs::directory_iterator(folder / "cache/kernels")) fs::resize_file(entry.path(), 58);
  EXPECT_EQ(code(program), "add");
  EXPECT_EQ(compiler.compiled, 2);
}

TEST_F(RunTimeCompilation, OneOfManyThreadsCompiles) {
  const gpu::Program program{"add mul", {"add", "mul"}};
  std::vector<std::thread> threads;
  std::vector<const gpu::Module*> modules(8);
  for (size_t i = 0; i < modules.size(); ++i)
    threads.emplace_back([&, i] { modules[i] = &gpu::load(program, hip(0)); });
  for (std::thread& thread : threads) thread.join();
  for (const gpu::Module* module : modules) EXPECT_EQ(module, modules[0]);
  EXPECT_EQ(compiler.compiled, 1);
  EXPECT_EQ(runtime.count("load_module"), 1);
}

TEST_F(RunTimeCompilation, WhatIsWrongIsCompiledOnceByACompiler) {
  std::vector<std::thread> threads;
  std::atomic<int> errors{0};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      try {
        code({"wrong", {}});
      } catch (const gpu::CompileError& error) {
        errors += error.what() == std::string("program(1): no") && error.log == "program(1): error: no";
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, 4);
  EXPECT_THROW(code({"wrong", {}}), gpu::CompileError);
  EXPECT_EQ(compiler.compiled, 1);
  compiler.version = "2";  // which may know more
  EXPECT_THROW(code({"wrong", {}}), gpu::CompileError);
  EXPECT_EQ(compiler.compiled, 2);
}

TEST_F(RunTimeCompilation, KernelsGetTheirArguments) {
  const gpu::Program program{"add mul", {"add", "mul"}};  // g++ 13 takes what load() returns for a part of its argument
  const gpu::Module& module = gpu::load(program, hip(0));
  int sum = 1;
  runtime.kernel_body = [](const gpu::Grid& grid, void** arguments) {
    **static_cast<int**>(arguments[0]) += *static_cast<int*>(arguments[1]) * static_cast<int>(grid.blocks);
  };
  module.launch(0, {3, 64, 0}, &sum, 5);
  EXPECT_EQ(sum, 16);
  module.launch(1, {0, 64, 0}, &sum, 5);
  EXPECT_EQ(runtime.count("launch_kernel"), 1);  // nothing for no blocks
  EXPECT_THROW(module.launch(1, {int64_t(1) << 31, 64, 0}, &sum, 5), Error);
  EXPECT_EQ(error_of([] {
              gpu::load({"add", {"subtract"}}, hip(0));
            }),
            "the program has no kernel subtract: it must be extern \"C\"");
  runtime.failing = "load_module";
  EXPECT_THROW(gpu::load({"add again", {"add"}}, hip(0)), DeviceError);
  runtime.failing.clear();
  gpu::load({"add again", {"add"}}, hip(0)).launch(0, {1, 1, 0}, &sum, 4);
  EXPECT_EQ(sum, 20);
}

TEST_F(RunTimeCompilation, AModuleWithoutItsKernelIsLoadedOnce) {
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(error_of([] {
                gpu::load({"add", {"subtract"}}, hip(0));
              }),
              "the program has no kernel subtract: it must be extern \"C\"");
  EXPECT_EQ(runtime.count("load_module"), 1);
  gpu::load({"add", {"add"}}, hip(0));  // the same code, other kernels
  EXPECT_EQ(runtime.count("load_module"), 2);
}

TEST_F(RunTimeCompilation, CodeThatTheDriverRefusesIsCompiledAgain) {
  runtime.failing = "load_module";
  EXPECT_THROW(gpu::load({"add", {"add"}}, hip(0)), DeviceError);
  EXPECT_TRUE(fs::is_empty(folder / "cache/kernels"));
  runtime.failing.clear();
  gpu::load({"add", {"add"}}, hip(0));
  EXPECT_EQ(compiler.compiled, 2);
}

TEST(Compilers, TheFirstErrorIsALine) {
  EXPECT_EQ(gpu::first_error("program(3): warning #177-D: variable \"x\"\n\nepilogue(1): error: identifier \"foo\" is "
                             "undefined\n  foo(acc)\n  ^\n\n1 error detected in the compilation of \"program\".\n"),
            "epilogue(1): identifier \"foo\" is undefined");
  EXPECT_EQ(gpu::first_error("program(3): error #20-D: a: b\n"), "program(3): a: b");
  EXPECT_EQ(gpu::first_error("/tmp/comgr-1/input/epilogue:1:9: error: use of undeclared identifier 'foo'\n"),
            "epilogue(1): use of undeclared identifier 'foo'");
  EXPECT_EQ(gpu::first_error("/tmp/comgr-1/include/tessera/tile/expr.h:12:9: error: no"),
            "tessera/tile/expr.h(12): no");
  EXPECT_EQ(gpu::first_error("nvrtc: error: invalid value for --gpu-architecture (-arch)\n"),
            "nvrtc: invalid value for --gpu-architecture (-arch)");
  EXPECT_EQ(gpu::first_error("all is well\n"), "");
}

TEST(Compilers, AreAnErrorOfALineWhereTheyAreMissing) {
  EXPECT_EQ(error_of([] { gpu::vendor_compiler(DeviceType::CPU); }), "cpu code is not compiled at run time");
  const pid_t child = fork();  // in a process that has not opened it yet
  if (child == 0) {
    setenv("TESSERA_NVRTC", "/nowhere/libnvrtc.so", 1);
    const auto error = error_of([] { gpu::vendor_compiler(DeviceType::CUDA); });
    _exit(error == "TESSERA_NVRTC names '/nowhere/libnvrtc.so', which does not load" ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessera
