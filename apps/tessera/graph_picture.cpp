#include "graph_picture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>

#include "command.h"
#include "tessera/error.h"

extern char** environ;

namespace tessera::app {
namespace {

// A string in Graphviz's language; what is no printable ASCII becomes a question mark.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c >= 32 && c < 127 ? c : '?';
  }
  return out + '"';
}

std::string_view colour_of(std::string_view op) {
  if (op.find("Conv") != op.npos) return "#cfe2f3";
  if (op.find("MatMul") != op.npos || op.find("Gemm") != op.npos || op == "Attention") return "#d9d2e9";
  if (op.find("Norm") != op.npos || op.find("Softmax") != op.npos) return "#d9ead3";
  if (op.find("Pool") != op.npos || op.find("Reduce") != op.npos) return "#fff2cc";
  return "#f3f3f3";
}

class Picture {
 public:
  explicit Picture(const onnx::Inspection& model) : model_(model) {
    text_ =
        "digraph {\n  node [shape=box style=\"filled,rounded\" fontname=\"Helvetica\" fontsize=10]\n"
        "  edge [fontname=\"Helvetica\" fontsize=8 color=\"#666666\"]\n";
    for (const onnx::Port& port : model.inputs) add_port("in_", port);
    for (size_t i = 0; i < model.graph.size(); ++i) add_node(i);
    for (size_t i = 0; i < model.graph.size(); ++i)
      for (const std::string& name : model.graph[i].inputs) add_edge(name, fmt::format("node_{}", i));
    for (const onnx::Port& port : model.outputs) {
      add_port("out_", port);
      add_edge(port.name, "out_" + port.name);
    }
    text_ += "}\n";
  }
  const std::string& text() const { return text_; }

 private:
  void add_port(const std::string& prefix, const onnx::Port& port) {
    text_ += fmt::format("  {} [shape=ellipse fillcolor=\"#ffffff\" label={}]\n", in_quotes(prefix + port.name),
                         in_quotes(port.name + "\n" + describe(port)));
    if (prefix == "in_") makers_[port.name] = prefix + port.name;
  }
  void add_node(size_t i) {
    const onnx::NodeText& node = model_.graph[i];
    std::string label = node.op;
    for (const std::string& name : node.inputs)
      if (const auto weight = model_.weights.find(name); weight != model_.weights.end())
        label += fmt::format("\n[{}]", fmt::join(weight->second, ", "));
    text_ += fmt::format("  node_{} [fillcolor=\"{}\" label={} tooltip={}]\n", i, colour_of(node.op), in_quotes(label),
                         in_quotes(node.name.empty() ? node.op : node.name));
    for (const std::string& name : node.outputs)
      if (!name.empty()) makers_[name] = fmt::format("node_{}", i);
  }
  void add_edge(const std::string& value, const std::string& to) {
    if (const auto maker = makers_.find(value); maker != makers_.end())
      text_ += fmt::format("  {} -> {} [tooltip={}]\n", in_quotes(maker->second), in_quotes(to), in_quotes(value));
  }

  const onnx::Inspection& model_;
  std::map<std::string, std::string> makers_;  // of values
  std::string text_;
};

void write_text(const std::string& text, const std::string& path) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw FileError(path + ": cannot be written");
}

// Runs dot, without a shell.
void draw(const std::string& source, const std::string& format, const std::string& path) {
  const std::string kind = "-T" + format;
  const std::array<const char*, 6> words{"dot", kind.c_str(), "-o", path.c_str(), source.c_str(), nullptr};
  pid_t child = 0;
  if (posix_spawnp(&child, "dot", nullptr, nullptr, const_cast<char* const*>(words.data()), environ) != 0)
    throw FileError(path + ": a picture needs the program dot, of the package graphviz; a file .dot needs nothing");
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) throw FileError(path + ": dot could not draw it");
}

}  // namespace

std::string graphviz_text(const onnx::Inspection& model) { return Picture(model).text(); }

void require_graph_file(const std::string& path) {
  const std::string format = std::filesystem::path(path).extension().string();
  if (format != ".dot" && format != ".svg" && format != ".png" && format != ".pdf")
    throw UsageError(path + ": a graph is written as .svg, .png, .pdf or .dot");
  require_writable(path);
}

void write_graph(const onnx::Inspection& model, const std::string& path) {
  const std::string format = std::filesystem::path(path).extension().string();
  if (format == ".dot") return write_text(graphviz_text(model), path);
  const std::string source = path + ".dot.part";
  write_text(graphviz_text(model), source);
  try {
    draw(source, format.substr(1), path);
  } catch (const Error&) {
    std::filesystem::remove(source);
    throw;
  }
  std::filesystem::remove(source);
}

}  // namespace tessera::app
