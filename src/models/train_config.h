// Options of a training run as JSON, as they are kept in a checkpoint.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "models/train_gpt.h"

namespace tessera::models {

/// Everything that decides the course of a run; the text by its checksum.
nlohmann::json config_to_json(const TrainOptions& options);
/// Throws FileError that begins with `file` where something is missing or of another kind.
TrainOptions config_from_json(const std::string& text, const std::string& file);
/// A line such as "layers is 4 there and 6 here" for the first difference; empty if there is none.
std::string first_difference(const nlohmann::json& there, const nlohmann::json& here);

}  // namespace tessera::models
