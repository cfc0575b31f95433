// tessera sample: text from a trained model.
#include <fmt/format.h>

#include <filesystem>

#include "command.h"
#include "models/train_gpt.h"
#include "profiling.h"
#include "tessera/profiler.h"

namespace tessera::app {
namespace {

struct SampleCommand : CommonOptions {
  std::string checkpoint, prompt;
  int64_t count = 500;
  models::SampleOptions options;
  RecordingOptions profile;
};

void run(SampleCommand& c) {
  c.apply();
  if (std::filesystem::is_directory(c.checkpoint)) c.checkpoint += "/checkpoint.safetensors";
  models::TrainedGPT trained = models::load_trained_gpt(c.checkpoint);
  if (trained.tokenizer.size() == 0)
    throw UsageError(c.checkpoint + ": it was trained on tokens without a vocabulary, which make no text");
  trained.model.to(c.target());
  trained.model.eval();
  trained.model.pack();  // all tokens are drawn with the same weights
  std::vector<int32_t> prompt;
  try {
    prompt = trained.tokenizer.encode(c.prompt);
  } catch (const Error& e) {
    throw UsageError(std::string("prompt: ") + e.what());
  }
  fmt::print("{}", c.prompt);
  c.options.seed = c.seed;
  c.options.vocab = trained.tokenizer.size();  // the model may know more tokens than the text had characters
  with_profile(c.profile, c.target(), true, [&] {
    profiler::parameters(trained.model.parameters());
    models::generate(trained.model, prompt, c.count, c.options, [&](int32_t token) {
      fmt::print("{}", trained.tokenizer.decode({token}));
      std::fflush(stdout);
      profiler::step();
      return true;
    });
    fmt::print("\n");
  });
}

}  // namespace

void add_sample(Command app) {
  const Command command = app.command("sample", "Write text with a trained model.");
  auto c = std::make_shared<SampleCommand>();
  command.option("--checkpoint", c->checkpoint, "a checkpoint, or the folder that holds it").required();
  command.option("--prompt", c->prompt, "text to continue");
  command.option("--tokens", c->count, "tokens to write").range(1, 1000000).with_default();
  command.option("--temperature", c->options.temperature, "below 1 plays safe, 0 always takes the likeliest")
      .range(0.0, 100.0)
      .with_default();
  command.option("--top-k", c->options.top_k, "draw among the k likeliest; 0: among all")
      .range(0, 1 << 24)
      .with_default();
  c->add_to(command, false);
  c->add_picks_to(command);
  c->profile.add_to(command, "active=0");
  command.run([c] { run(*c); });
}

}  // namespace tessera::app
