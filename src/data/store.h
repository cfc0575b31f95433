// Where files of another machine are, and how a request for one is signed.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

/// The value of an environment variable; empty where there is none.
using Environment = std::function<std::string(const char* name)>;
/// Of this process.
std::string environment_variable(const char* name);

struct Store {
  std::string name;                  ///< as it was given, without a last '/'
  std::string url;                   ///< http(s)://HOST[/PATH], escaped: files are below it
  std::string key, secret, session;  ///< of S3; without a key requests are not signed
  std::string region;                ///< of S3
  bool is_s3() const { return !region.empty(); }
  std::string url_of(std::string_view file) const;
  std::string name_of(std::string_view file) const { return name + "/" + std::string(file); }
};

/// Throws FileError on an address that is none: of another kind, without a host or a bucket, with a query, or with a
/// name and password.
Store parse_store(std::string_view address, const Environment& environment);

/// The code that an error of S3 names in its XML, such as NoSuchKey; empty where there is none.
std::string s3_error_code(std::string_view body);

}  // namespace tessera
