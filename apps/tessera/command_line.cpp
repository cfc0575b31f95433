#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>

namespace tessera::app {
namespace {

// CLI11 does not say which word it did not know, or which ones it knows.
void check_commands(const CLI::App& top, int argc, char** argv) {
  std::string path;
  const CLI::App* app = &top;
  for (int i = 1; app->get_require_subcommand_min() > 0; ++i) {
    if (i < argc && argv[i][0] == '-') return;  // options of `app` itself, such as --help
    std::string known;
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      known += (known.empty() ? "" : ", ") + sub->get_name();
      if (i < argc && sub->get_name() == argv[i]) next = sub;
    }
    if (i == argc) throw UsageError(fmt::format("tessera{}: give one of {}", path, known));
    if (!next) throw UsageError(fmt::format("unknown command '{}': give one of {}", argv[i], known));
    path += fmt::format(" {}", argv[i]);
    app = next;
  }
}

// CLI11 takes a number that its type cannot hold for the nearest that it can.
template <class T>
std::string check_fits(const std::string& text) {
  T value;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fits = read.ec != std::errc::result_out_of_range && (std::is_signed_v<T> || !text.starts_with('-'));
  return fits ? "" : "Value " + text + " is out of range";
}
std::string check_number(const std::string& text) {  // comparisons alone let NaN pass
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "Value " + text + " is not a number" : "";
}
// Of the commands that take what stands behind --.
std::map<std::string, std::vector<std::string>*>& behind_dashes_of() {
  static std::map<std::string, std::vector<std::string>*> all;
  return all;
}
// Gives it to the command; returns how many words are left.
int take_behind_dashes(int argc, char** argv) {
  const auto found = argc > 1 ? behind_dashes_of().find(argv[1]) : behind_dashes_of().end();
  char** const at = std::find(argv, argv + argc, std::string_view("--"));
  if (found == behind_dashes_of().end() || at == argv + argc) return argc;
  found->second->assign(at + 1, argv + argc);
  return static_cast<int>(at - argv);
}

template <class T>
CLI::Option* checked(CLI::Option* option) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) option->check(check_fits<T>);
  return option;
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::with_default() const { return Option(option_->capture_default_str()); }
Option Option::range(int low, int high) const { return Option(option_->check(CLI::Range(low, high))); }
Option Option::range(double low, double high) const {
  return Option(option_->check(CLI::Range(low, high))->check(check_number));
}
Option Option::one_of(const std::vector<std::string>& values) const {
  return Option(option_->check(CLI::IsMember(values)));
}
Option Option::take_all() const { return Option(option_->take_all()); }
Option Option::between_commas(int count) const { return Option(option_->delimiter(',')->expected(count)); }
Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }
Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }

Command Command::command(const std::string& name, const std::string& text) const {
  return Command(app_->add_subcommand(name, text));
}
void Command::require_command() const { app_->require_subcommand(1); }
template <class T>
Option Command::option(const std::string& name, T& value, const std::string& text) const {
  return Option(checked<T>(app_->add_option(name, value, text)));
}
template <class T>
Option Command::option(const std::string& name, std::function<void(const T&)> use, const std::string& text) const {
  return Option(checked<T>(app_->add_option_function<T>(name, std::move(use), text)));
}
Option Command::flag(const std::string& name, bool& value, const std::string& text) const {
  return Option(app_->add_flag(name, value, text));
}
void Command::behind_dashes(std::vector<std::string>& words) const { behind_dashes_of()[app_->get_name()] = &words; }
void Command::run(std::function<void()> action) const {
  app_->callback([app = app_, action = std::move(action)] {
    if (app->get_subcommands().empty()) action();
  });
}

#define TESSERA_OPTION(...) \
  template Option Command::option<__VA_ARGS__>(const std::string&, __VA_ARGS__&, const std::string&) const;
TESSERA_OPTION(std::string)
TESSERA_OPTION(int)
TESSERA_OPTION(int64_t)
TESSERA_OPTION(uint64_t)
TESSERA_OPTION(double)
TESSERA_OPTION(std::vector<std::string>)
TESSERA_OPTION(std::vector<int>)
#undef TESSERA_OPTION
#define TESSERA_OPTION(T) \
  template Option Command::option<T>(const std::string&, std::function<void(const T&)>, const std::string&) const;
TESSERA_OPTION(int64_t)
TESSERA_OPTION(double)
TESSERA_OPTION(bool)
#undef TESSERA_OPTION

CommandLine::CommandLine(const std::string& text, const std::string& version)
    : Command(nullptr), root_(std::make_unique<CLI::App>(text)) {
  app_ = root_.get();
  app_->set_version_flag("--version", version);
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}
CommandLine::~CommandLine() = default;

void CommandLine::parse(int argc, char** argv) const {
  argc = take_behind_dashes(argc, argv);
  check_commands(*app_, argc, argv);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) throw UsageError(e.what());
    app_->exit(e);  // --help, --version
  }
}

}  // namespace tessera::app
