// Checkpoints that newer ones have replaced: PATH.1 is the one before PATH, PATH.2 the one before that.
#pragma once
#include <string>
#include <vector>

namespace tessera {

/// "PATH.1" of age 1; `path` itself of age 0.
std::string checkpoint_of_age(const std::string& path, int age);
/// Makes the checkpoint at `path` PATH.1, too, and that one PATH.2, so that with the next one `keep` are there. Throws
/// Error.
void keep_replaced(const std::string& path, int keep);
/// Removes those of age `keep` and older.
void remove_replaced(const std::string& path, int keep);
/// Puts the one of that age in the place of `path`, which is damaged. Throws Error.
void go_back_to(const std::string& path, int age);
/// All that belong to `path`: itself, PATH.old and those that were replaced.
std::vector<std::string> all_checkpoints_of(const std::string& path);

}  // namespace tessera
