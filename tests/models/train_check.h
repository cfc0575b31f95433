// A small training run.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "models/train_gpt.h"

namespace tessera::models {

/// Words in an order with some structure to learn.
inline std::string some_text(size_t size) {
  const char* words[] = {"to ", "be ", "or ", "not ", "that ", "is ", "the ", "question\n"};
  std::mt19937 random(1);
  std::string out;
  for (unsigned at = 0; out.size() < size; at = (at + 1 + random() % 2) % 8) out += words[at];
  return out;
}

inline TrainOptions tiny() {
  TrainOptions o;
  o.model = {.layers = 1, .heads = 2, .width = 16, .block = 8, .vocab = 0, .dropout = 0.1, .bias = false};
  o.steps = 12;
  o.batch = 3;
  o.warmup = 3;
  o.lr = 1e-2;
  o.min_lr = 1e-3;
  o.eval_interval = 5;
  o.checkpoint_interval = 4;
  o.text = some_text(1000);
  return o;
}

inline std::vector<double> losses(const TrainResult& r) {
  std::vector<double> out;
  for (const StepInfo& s : r.steps) out.push_back(s.loss);
  return out;
}

}  // namespace tessera::models
