#include "data/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "io/file.h"
#include "tessera/error.h"

namespace tessera {
namespace {

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// Escapes all but the unreserved characters of RFC 3986, and those of `kept`.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (char c : text)
    if (is_letter_or_digit(c) || std::string_view("-._~").find(c) != std::string_view::npos ||
        kept.find(c) != kept.npos)
      out += c;
    else out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

[[noreturn]] void refuse(std::string_view address, std::string_view why) {
  throw FileError(fmt::format("{}: {}", in_quotes(address), why));
}

// Those behind the scheme.
std::string without_last_slashes(std::string_view address) {
  while (address.ends_with('/') && !address.ends_with("://")) address.remove_suffix(1);
  return std::string(address);
}

// http or https, a host, maybe a port and a path; a path may be escaped already.
std::string parse_http(std::string_view address) {
  const std::string_view rest = address.substr(address.find("://") + 3), host = rest.substr(0, rest.find('/'));
  if (rest.find_first_of("?#") != rest.npos) refuse(address, "an address of a folder has no '?' and no '#'");
  if (host.find('@') != host.npos) refuse(address.substr(0, address.find("://")), "an address has no name or password");
  if (host.empty() || !std::all_of(host.begin(), host.end(), [](char c) {
        return is_letter_or_digit(c) || std::string_view("-._:[]").find(c) != std::string_view::npos;
      }))
    refuse(address, "has no host");
  return fmt::format("{}{}", address.substr(0, address.find("://") + 3 + host.size()),
                     escaped(rest.substr(host.size()), "/%!$&'()*+,;=:@"));
}

void parse_s3(std::string_view address, const Environment& variable, Store& store) {
  const std::string_view rest = address.substr(5), bucket = rest.substr(0, rest.find('/'));
  const std::string_view prefix = rest.substr(std::min(rest.size(), bucket.size()));
  if (bucket.size() < 3 || bucket.size() > 255 || !std::all_of(bucket.begin(), bucket.end(), [](char c) {
        return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_';
      }))
    refuse(address, "has no bucket: s3://BUCKET/PATH");
  const auto first = [&](std::initializer_list<const char*> names, std::string otherwise) {
    for (const char* name : names)
      if (std::string value = variable(name); !value.empty()) return value;
    return otherwise;
  };
  store.key = variable("AWS_ACCESS_KEY_ID");
  store.secret = variable("AWS_SECRET_ACCESS_KEY");
  store.session = variable("AWS_SESSION_TOKEN");
  if (store.key.empty() != store.secret.empty())
    refuse(address, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY come together");
  store.region = first({"AWS_REGION", "AWS_DEFAULT_REGION"}, "us-east-1");
  const auto is_plain = [](char c) { return is_letter_or_digit(c) || c == '-'; };
  if (!std::all_of(store.region.begin(), store.region.end(), is_plain))
    refuse(address, "AWS_REGION " + in_quotes(store.region) + " is no region");
  const std::string endpoint = first({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"}, "");
  const bool own_host = endpoint.empty() && bucket.find_first_of("._") == bucket.npos;
  if (own_host) store.url = fmt::format("https://{}.s3.{}.amazonaws.com", bucket, store.region);
  else if (endpoint.empty()) store.url = fmt::format("https://s3.{}.amazonaws.com/{}", store.region, bucket);
  else if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
    refuse(endpoint, "the endpoint of S3 begins with https:// or http://");
  else store.url = parse_http(without_last_slashes(endpoint)) + "/" + std::string(bucket);
  store.url += escaped(prefix, "/");
}

}  // namespace

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::string Store::url_of(std::string_view file) const { return url + "/" + escaped(file, "/"); }

Store parse_store(std::string_view address, const Environment& environment) {
  if (std::any_of(address.begin(), address.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }))
    refuse(address, "an address has no control characters");
  Store store;
  store.name = without_last_slashes(address);
  if (address.starts_with("s3://")) parse_s3(store.name, environment, store);
  else if (address.starts_with("http://") || address.starts_with("https://")) store.url = parse_http(store.name);
  else refuse(address, "is neither a folder nor https://, http:// or s3://");
  return store;
}

std::string s3_error_code(std::string_view body) {
  constexpr std::string_view open = "<Code>";
  const size_t begin = body.find(open);
  if (begin == body.npos) return {};
  const std::string_view rest = body.substr(begin + open.size()), code = rest.substr(0, rest.find('<'));
  const bool good = !code.empty() && code.size() <= 64 && std::all_of(code.begin(), code.end(), is_letter_or_digit);
  return good ? std::string(code) : std::string();
}

}  // namespace tessera
