// Memory that another library owns, as record_stream() meets it.
#pragma once
#include <memory>

#include "tessera/stream.h"

namespace tessera::gpu {

/// Notes that `stream` works on a storage that foreign::adopt() made; false for any other.
bool note_foreign_use(Storage& storage, const std::shared_ptr<Stream::State>& stream);

}  // namespace tessera::gpu
