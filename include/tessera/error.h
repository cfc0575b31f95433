// Errors: every failure of the library is an exception that names the op, the shapes and the rule broken.
#pragma once
#include <stdexcept>
#include <string>

namespace tessera {

/// Base of all exceptions thrown by the library.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A request for more memory than there is; the message names the sizes.
struct OutOfMemoryError : Error {
  using Error::Error;
};

/// A file that is missing, damaged, or of another kind than expected.
struct FileError : Error {
  using Error::Error;
};

/// A GPU that failed, or a call of its run-time library that did. After a fault in a kernel the device is lost for this
/// process: every later call on it throws this, the CPU and other devices go on.
struct DeviceError : Error {
  using Error::Error;
};

}  // namespace tessera
