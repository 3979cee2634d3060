#pragma once

// Races between operations whose memory is known: copies, memsets, products and collectives. A vector clock
// of each stream and of the host says what is over when an operation begins; recording an event and waiting
// for it passes this on. One that no event and no wait of the host orders is reported, however the streams
// happened to run.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>

#include "standin.h"

namespace standin {

/// For each stream, how many of its accesses are over.
using StreamClock = std::map<CUstream_st*, long>;

/// `who` touches memory in the order of the stream.
void access(const char* who, CUstream_st* stream, const Range& range);

/// What is over when the stream comes to what is put on it next.
StreamClock known_to(CUstream_st* stream);
void stream_waits(CUstream_st* stream, const StreamClock& known);
void host_knows(const StreamClock& known);
void host_waited_for(CUstream_st* stream);

}  // namespace standin
