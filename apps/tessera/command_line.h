// Subcommands and their options. CLI11, which takes seconds to compile, is known to command_line.cpp alone.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::app {

/// Bad usage: the command prints one line and exits 2.
struct UsageError : Error {
  using Error::Error;
};

/// An option, a flag or a positional argument of a subcommand; each rule returns the option for the next.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  /// The value at hand is the default that --help shows.
  Option with_default() const;
  Option range(int low, int high) const;
  Option range(double low, double high) const;
  Option one_of(const std::vector<std::string>& values) const;
  /// Every further argument is one more value.
  Option take_all() const;
  /// Exactly that many values, between commas.
  Option between_commas(int count) const;
  Option excludes(Option other) const;
  Option needs(Option other) const;

 private:
  CLI::Option* option_;
};

/// The command or one of its subcommands.
class Command {
 public:
  /// A command of this one.
  Command command(const std::string& name, const std::string& text) const;
  /// One of its commands must be given.
  void require_command() const;
  /// Sets `value`: a string, an int, int64_t, uint64_t or double, or several strings or ints. `value` must outlive the
  /// parse.
  template <class T>
  Option option(const std::string& name, T& value, const std::string& text) const;
  /// Calls `use` with the value: an int64_t, a double or a bool.
  template <class T>
  Option option(const std::string& name, std::function<void(const T&)> use, const std::string& text) const;
  Option flag(const std::string& name, bool& value, const std::string& text) const;
  /// What stands behind --, word for word; of a command at the top. CLI11 itself takes "[2, 0]" for a list.
  void behind_dashes(std::vector<std::string>& words) const;
  /// What to do when the command was given, and none of its own commands.
  void run(std::function<void()> action) const;

 protected:
  explicit Command(CLI::App* app) : app_(app) {}
  CLI::App* app_;
};

/// The command itself, with --help and --version.
class CommandLine : public Command {
 public:
  CommandLine(const std::string& text, const std::string& version);
  ~CommandLine();
  /// Parses the arguments and runs what they name. Throws UsageError.
  void parse(int argc, char** argv) const;

 private:
  std::unique_ptr<CLI::App> root_;
};

}  // namespace tessera::app
