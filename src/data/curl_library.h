// libcurl, opened at the first use: a build needs neither it nor its headers. The numbers are those of its interface,
// which has kept them since version 7.75.
#pragma once

namespace tessera {

struct CurlLibrary {
  using Easy = void*;
  struct List;
  enum Result : int {
    ok = 0,
    unsupported_protocol = 1,
    bad_url = 3,
    not_built_in = 4,
    partial_file = 18,
    write_error = 23,
    timed_out = 28,
    too_many_redirects = 47,
    unknown_option = 48,
    stopped = 42,
    bad_certificate = 60,
    bad_ca_file = 77
  };
  enum Option : int {
    write_data = 10001,
    url = 10002,
    error_buffer = 10010,
    low_speed_limit = 19,
    low_speed_time = 20,
    user_agent = 10018,
    headers = 10023,
    no_progress = 43,
    follow = 52,
    progress_data = 10057,
    most_redirects = 68,
    no_signals = 99,
    timeout_ms = 155,
    connect_timeout_ms = 156,
    user_name = 10173,
    password = 10174,
    protocols = 181,
    redirect_protocols = 182,
    path_as_is = 234,
    ca_file = 10065,
    write_function = 20011,
    progress_function = 20219,
    aws_sigv4 = 10305
  };
  static constexpr long kHttp = 1, kHttps = 2;    // of protocols
  static constexpr int kResponseCode = 0x200002;  // of getinfo

  Easy (*init)();
  void (*cleanup)(Easy);
  void (*reset)(Easy);
  int (*setopt)(Easy, int option, ...);
  int (*perform)(Easy);
  int (*getinfo)(Easy, int what, ...);
  const char* (*error_text)(int result);
  List* (*append)(List*, const char*);
  void (*free_list)(List*);
};

/// That which TESSERA_CURL names, or else libcurl.so.4 or libcurl-gnutls.so.4. Throws Error where there is none.
const CurlLibrary& curl_library();

}  // namespace tessera
