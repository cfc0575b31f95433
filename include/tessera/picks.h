// Which kernel runs where several could. By default the order of an operator's list decides, the same on every machine;
// `tessera explain` shows it. Measured picks are quicker and depend on the machine that they were measured on.
#pragma once
#include <optional>
#include <string>

#include "tessera/device.h"

namespace tessera {

/// From now on in this process, the first call of each kind (operator, shapes, layouts, dtypes, parameters) that more
/// than one kernel takes runs all of them, a few times each, and then the fastest; later calls of the kind run that
/// one. What was measured is kept in picks_file() and read from there by later processes. Calls inside of a graph's
/// capture and in-place operators are not measured. Throws Error where no cache folder is known.
void measure_picks();
/// Uses the picks of a file that measure_picks() wrote, and measures nothing: calls that it does not name follow the
/// lists' order. A pick that cannot run its call is ignored with a warning on stderr, as is, once, that the file is
/// from another card or version, or not for the GPU that computes. Throws FileError if it is no such file, or, with
/// `device`, if it was measured on another kind of device.
void pin_picks(const std::string& file, std::optional<Device> device = {});
/// Back to the order of the lists.
void static_picks();

/// Where picks for this device and these versions of the libraries are kept: in picks/ of TESSERA_CACHE_DIR, or of
/// tessera/ in $XDG_CACHE_HOME or ~/.cache. Throws Error if none of these variables is set.
std::string picks_file(Device device);

}  // namespace tessera
