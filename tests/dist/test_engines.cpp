// Ranks that ask for engines that are not there, or not for the same.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "dist/group.h"
#include "dist/mesh.h"
#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::dist {
namespace {

// What each of two ranks reads that ask for these.
std::vector<std::string> errors_of(const std::string& first, const std::string& second) {
  const std::shared_ptr<Control> control = create_run(2);
  std::vector<std::string> errors(2, "no error");
  const auto rank = [&](int r) {
    try {
      const auto world = make_world(control, r, {.timeout = 300, .engine = r == 0 ? first : second});
      world->engine->barrier();
    } catch (const Error& e) {
      errors[static_cast<size_t>(r)] = e.what();
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  return errors;
}

TEST(Engines, RanksThatAskForDifferentOnesReadWhich) {
  for (const auto& [first, second] : {std::pair{"neighbours", "tcp"}, {"tcp", "neighbours"}})
    for (const std::string& error : errors_of(first, second)) {
      const std::string one = std::string("dist: rank 0 has the engine ") + first + ", and rank 1 the engine " + second;
      const std::string other =
          std::string("dist: rank 1 has the engine ") + second + ", and rank 0 the engine " + first;
      EXPECT_TRUE(error == one || error == other) << error;
    }
  EXPECT_EQ(errors_of("tcp", "tcp"), std::vector<std::string>(2, "no error"));
}

// What a rank reads whose TESSERA_GPU_ENGINE is `asked`. No GPU is touched before.
std::string gpu_error(const std::vector<std::string>& asked) {
  std::string error = "no error";
  try {
    run_ranks(static_cast<int>(asked.size()), [&](const World& world) {
      world.state().asked_gpu_engine = asked[static_cast<size_t>(world.rank())];
      world.state().engine_on(cuda(0), true);
    });
  } catch (const Error& e) {
    error = e.what();
  }
  return error;
}

TEST(Engines, ThoseOfGpusAreChecked) {
  EXPECT_EQ(gpu_error({"ncc", "ncc"}), "dist: TESSERA_GPU_ENGINE=ncc is neither host nor nccl");
  EXPECT_EQ(gpu_error({"rccl", "rccl"}), "dist: TESSERA_GPU_ENGINE=rccl is neither host nor nccl");
  EXPECT_EQ(gpu_error({"host", "host"}), "no error");
  EXPECT_EQ(gpu_error({"host", "host", "nccl"}),
            "dist: TESSERA_GPU_ENGINE asks for host on rank 0, and for nccl on rank 2");
  EXPECT_EQ(gpu_error({"", "host"}), "dist: TESSERA_GPU_ENGINE asks for nothing on rank 0, and for host on rank 1");
}

TEST(Engines, TheVariableIsThatOfTheWorld) {
  ASSERT_EQ(setenv("TESSERA_GPU_ENGINE", "none", 1), 0);
  EXPECT_THROW(
      {
        try {
          run_ranks(2, [](const World& world) { world.state().engine_on(cuda(0), true); });
        } catch (const Error& e) {
          EXPECT_STREQ(e.what(), "dist: TESSERA_GPU_ENGINE=none is neither host nor nccl");
          throw;
        }
      },
      Error);
  unsetenv("TESSERA_GPU_ENGINE");
}

// A rank that was stopped or starved for seconds may be taken for a stranger and be forgotten. It comes again.
TEST(Mesh, ComesAgainWhereItWasForgotten) {
  for (const int forgotten : {0, 2, 100}) {
    const std::shared_ptr<Control> control = create_run(2);
    Socket listener = Socket::listen(0);
    control->place(1).address = kThisHost;
    control->place(1).port = static_cast<uint16_t>(listener.port());
    std::atomic<bool> is_over{false};
    std::thread other([&] {
      for (int i = 0; i < forgotten && !is_over;) {
        wait_readable({listener.fd()}, 1);
        if (Socket came = listener.accept()) ++i;  // and is closed
      }
      Door door(std::move(listener), control->hosts().key);
      std::vector<Channel> kept;
      while (!is_over) {
        std::vector<int> fds;
        door.add_to(fds);
        wait_readable(fds, 0.1);
        door.step([](const Hello&) {}, [&](Channel&& channel, const Hello&) { kept.push_back(std::move(channel)); });
      }
    });
    std::string error = "no error";
    try {
      Mesh mesh(control, 0);
      EXPECT_TRUE(mesh.open(1, 1, Purpose::Collectives));
    } catch (const Error& e) {
      error = e.what();
    }
    is_over = true;
    other.join();
    EXPECT_EQ(error.substr(0, 36), forgotten < 5 ? "no error" : "rank 0 does not reach rank 1: dist: ");
  }
}

}  // namespace
}  // namespace tessera::dist
