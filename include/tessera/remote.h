// Files of other machines: https://HOST/PATH, http://HOST/PATH and s3://BUCKET/PATH, read with libcurl, which is opened
// at the first use. A path without :// is of this machine, and none of this concerns it.
//
// S3 is addressed and signed by the usual variables: AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
// (without them requests are not signed), AWS_REGION or AWS_DEFAULT_REGION, and AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL
// or S3_ENDPOINT_URL for stores other than Amazon's.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tessera {

struct RemoteOptions {
  /// A cache folder of ours, which runs and ranks of one user share; empty: that of compiled kernels.
  std::string cache = {};
  /// Bytes of all shards in that folder, whoever keeps them; those used last stay. At least one shard must fit.
  int64_t cache_limit = int64_t{64} << 30;
  int attempts = 5;       ///< of a file, which begin 0.5 s, 1 s, 2 s, ... after one another; 1: none is repeated
  double stall = 10;      ///< seconds without a byte that end an attempt
  double deadline = 300;  ///< seconds until a file must be there, attempts and waits for other processes together
  /// Called after an attempt that failed before another one, in the thread that waits: "waiting for ADDRESS: why, ...".
  std::function<void(const std::string& line)> on_wait = {};
};

/// Whether the path names another machine.
bool is_remote(const std::string& path);
/// A whole file, of at most 1 GiB, of this machine or of another one. Throws FileError.
std::string read_stored_file(const std::string& path, const RemoteOptions& options = {});
/// The same, or nothing where there is no such file.
std::optional<std::string> find_stored_file(const std::string& path, const RemoteOptions& options = {});

}  // namespace tessera
